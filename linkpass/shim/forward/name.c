/*
 * libibverbs.so: nothing but a name.  Its symbols are those of libibverbs.so.1, the shim, which it needs;
 * dlsym() on its handle finds them there.
 */
extern const char lp_name_marker[];
__attribute__((used)) const char lp_name_marker[] = "LinkPass verbs shim: this is not libibverbs";
