# What attaching needs: the exported symbols and their versions, the name by which the loader takes this library for
# libibverbs, and the two names under which programs open it.
target_sources(
  linkpass_shim
  PRIVATE ${CMAKE_CURRENT_LIST_DIR}/forward/forward.c
          ${CMAKE_CURRENT_LIST_DIR}/forward/find.c
          ${CMAKE_CURRENT_LIST_DIR}/forward/hide.c
          ${CMAKE_CURRENT_LIST_DIR}/forward/ldcache.c
          ${CMAKE_CURRENT_LIST_DIR}/forward/trampoline.c)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/forward/trampoline.c PROPERTIES OBJECT_DEPENDS
                            ${CMAKE_CURRENT_LIST_DIR}/forward/symbols.def)
# Assembly that LTO can't see.
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/forward/trampoline.c
                            PROPERTIES COMPILE_OPTIONS "$<$<BOOL:${LINKPASS_LTO}>:-fno-lto>")
set_target_properties(
  linkpass_shim
  PROPERTIES NO_SONAME ON
             INTERPROCEDURAL_OPTIMIZATION ${LINKPASS_LTO}
             LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/libibverbs.map)
# The soname makes the loader take a preloaded shim for libibverbs.so.1, whoever asks and whatever run path they have.
# nodelete: contexts point into this library until the process ends.
target_link_options(
  linkpass_shim PRIVATE -Wl,-soname,libibverbs.so.1 -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/libibverbs.map
  -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro)
if(NOT LINKPASS_ASAN AND NOT LINKPASS_TSAN)
  target_link_options(linkpass_shim PRIVATE -Wl,-z,defs)
endif()

# verbs/: a folder to put first on LD_LIBRARY_PATH. libibverbs.so.1 there is the shim (a copy: wheels know no links).
# libibverbs.so, the name that NCCL opens, is an empty library that needs libibverbs.so.1, so that a process which
# preloads the shim and opens that name as well still has one shim only.
set(LINKPASS_VERBS_DIR ${CMAKE_CURRENT_BINARY_DIR}/verbs)
file(MAKE_DIRECTORY ${LINKPASS_VERBS_DIR})
add_custom_command(
  TARGET linkpass_shim POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E copy_if_different $<TARGET_FILE:linkpass_shim> ${LINKPASS_VERBS_DIR}/libibverbs.so.1)
add_library(linkpass_verbs_name SHARED ${CMAKE_CURRENT_LIST_DIR}/forward/name.c)
target_link_libraries(linkpass_verbs_name PRIVATE linkpass_flags)
set_target_properties(linkpass_verbs_name PROPERTIES OUTPUT_NAME ibverbs NO_SONAME ON LIBRARY_OUTPUT_DIRECTORY
                                                     ${LINKPASS_VERBS_DIR} BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH
                                                     "$ORIGIN")
add_dependencies(linkpass_verbs_name linkpass_shim)
target_link_options(linkpass_verbs_name PRIVATE -Wl,--no-as-needed ${LINKPASS_VERBS_DIR}/libibverbs.so.1)

install(FILES ${LINKPASS_VERBS_DIR}/libibverbs.so.1 DESTINATION linkpass/shim/verbs)
install(TARGETS linkpass_verbs_name LIBRARY DESTINATION linkpass/shim/verbs)
