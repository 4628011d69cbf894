/*
 * The exported symbols: for each line of symbols.def and private.def a jump, named with its version.
 * Arguments and return address stay untouched, so one form serves functions of any signature.
 */
#include "forward.h"
#include "private_nodes.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "LinkPass's verbs shim knows x86-64 and AArch64 only"
#endif

#define LP_STR2(x) #x
#define LP_STR(x) LP_STR2(x)

#define LP_AGE_DEF "@@"
#define LP_AGE_OLD "@"

#if defined(__x86_64__)
#define LP_ENTER "endbr64\n\t"
#define LP_JUMP_HOOK(symbol) "jmp lp_hook_" LP_STR(symbol)
#else
#define LP_ENTER "hint 34\n\t" /* bti c */
#define LP_JUMP_HOOK(symbol) "b lp_hook_" LP_STR(symbol)
#endif

/*
 * Top-level asm can't take operands, and enum values aren't visible to it.  The assembler counts the slots
 * itself: both lists give them in the order of the enum.
 */
__asm__(".set lp_slot_counter, 0");

#if defined(__x86_64__)
#define LP_JUMP_TABLE "jmp *lp_forward_table+(8*lp_slot_counter)(%rip)\n\t"
#else
#define LP_JUMP_TABLE                                                                                        \
    "adrp x16, lp_forward_table+(8*lp_slot_counter)\n\t"                                                     \
    "ldr x16, [x16, :lo12:lp_forward_table+(8*lp_slot_counter)]\n\t"                                         \
    "br x16\n\t"
#endif

#define LP_BEGIN(slot)                                                                                       \
    ".pushsection .text\n\t"                                                                                 \
    ".p2align 4\n\t"                                                                                         \
    ".globl lp_entry_" #slot "\n\t"                                                                          \
    ".type lp_entry_" #slot ", %function\n"                                                                  \
    "lp_entry_" #slot ":\n\t" LP_ENTER

#define LP_END(slot)                                                                                         \
    "\n\t.size lp_entry_" #slot ", . - lp_entry_" #slot "\n\t"                                               \
    ".set lp_slot_counter, lp_slot_counter + 1\n\t"                                                          \
    ".popsection"

#define LP_NAME(slot, symbol, age, version) "\n\t.symver lp_entry_" #slot ", " #symbol LP_AGE_##age version

#define LP_FWD(slot, symbol, version, age, missing)                                                          \
    __asm__(LP_BEGIN(slot) LP_JUMP_TABLE LP_NAME(slot, symbol, age, version) LP_END(slot));
#define LP_HOOK(slot, symbol, version, age, missing)                                                         \
    __asm__(LP_BEGIN(slot) LP_JUMP_HOOK(symbol) LP_NAME(slot, symbol, age, version) LP_END(slot));
#include "symbols.def"

#define LP_PRIVATE_NAME(number, symbol) LP_NAME(symbol, symbol, OLD, "IBVERBS_PRIVATE_" #number)
#define LP_PRIVATE(symbol, missing)                                                                          \
    __asm__(LP_BEGIN(symbol) LP_JUMP_TABLE LP_PRIVATE_NODES(LP_PRIVATE_NAME, symbol) LP_END(symbol));
#define LP_REGISTER(number)                                                                                  \
    __asm__(LP_BEGIN(verbs_register_driver_##number)                                                         \
                LP_JUMP_TABLE LP_NAME(verbs_register_driver_##number, verbs_register_driver_##number, OLD,   \
                                      "IBVERBS_PRIVATE_" #number) LP_END(verbs_register_driver_##number));
#include "private.def"

/*
 * The one variable that providers read.  The real library, loaded after this one went global, binds to it too
 * and sets it (RDMAV_ALLOW_DISASSOC_DESTROY).
 */
#define LP_DATA_NAME(number, symbol)                                                                         \
    "\n\t.symver lp_allow_disassociate_destroy_data, " #symbol "@IBVERBS_PRIVATE_" #number
__asm__(".pushsection .bss\n\t"
        ".globl lp_allow_disassociate_destroy_data\n\t"
        ".type lp_allow_disassociate_destroy_data, %object\n\t"
        ".size lp_allow_disassociate_destroy_data, 1\n"
        "lp_allow_disassociate_destroy_data:\n\t"
        ".zero 8" LP_PRIVATE_NODES(LP_DATA_NAME, verbs_allow_disassociate_destroy) "\n\t"
                                                                                   ".popsection");
