# find_package(haotuner) in the sources of a wheel or a clone: the library is built inside the server's build.
if(NOT TARGET haotuner::haotuner)
  add_subdirectory("${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_BINARY_DIR}/haotuner" EXCLUDE_FROM_ALL)
endif()
