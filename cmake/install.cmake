# cmake --install installs the program, the golden cases of `isotron validate`, libisotron.a, its headers, and packages for CMake
# (find_package(isotron)) and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
add_dependencies(isotron libisotron) # so that the target isotron builds everything that is installed
set(headers ${CMAKE_INSTALL_INCLUDEDIR}/isotron)
set(packages ${CMAKE_INSTALL_LIBDIR}/cmake/isotron)
target_include_directories(libisotron INTERFACE $<INSTALL_INTERFACE:${headers}>)
install(TARGETS isotron RUNTIME)
install(DIRECTORY golden DESTINATION share/isotron) # src/validate/parity.c finds it relative to the program
install(TARGETS libisotron EXPORT isotron ARCHIVE)
install(DIRECTORY src/ kernels DESTINATION ${headers} FILES_MATCHING PATTERN "*.h" PATTERN "*.def"
  PATTERN main EXCLUDE PATTERN measure EXCLUDE PATTERN parity EXCLUDE PATTERN validate EXCLUDE PATTERN plan EXCLUDE
  PATTERN kernels/cpu EXCLUDE PATTERN kernels/cuda EXCLUDE PATTERN tensor/cuda.h EXCLUDE PATTERN "case*" EXCLUDE)
install(EXPORT isotron NAMESPACE isotron:: FILE isotron-targets.cmake DESTINATION ${packages})
configure_package_config_file(cmake/isotron-config.cmake.in isotron-config.cmake INSTALL_DESTINATION ${packages})
write_basic_package_version_file(isotron-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/isotron-config.cmake ${PROJECT_BINARY_DIR}/isotron-config-version.cmake DESTINATION ${packages})

set(private "-lm -pthread")
if(BZIP2_FOUND)
  string(APPEND private " -lbz2")
endif()
if(LIBLZMA_FOUND)
  string(APPEND private " -llzma")
endif()
if(MICROHTTPD_FOUND)
  string(APPEND private " -lmicrohttpd")
endif()
if(MPI_C_FOUND)
  list(JOIN MPI_C_LIBRARIES " " mpi)
  string(APPEND private " ${mpi}")
endif()
if(ISOTRON_CUDA)
  string(APPEND private " -L${CUDAToolkit_LIBRARY_DIR} -Wl,-rpath,${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart ${CUDNN} -lstdc++")
endif()
file(RELATIVE_PATH up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/isotron.pc.in isotron.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/isotron.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
