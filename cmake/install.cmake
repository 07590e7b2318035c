# The library, its headers, the tool, and what find_package(penstock) and pkg-config need to find them. The components
# are the packages of cmake/package.cmake; `cmake --install` installs all of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS penstock EXPORT penstock
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
if(TARGET penstock_tool)
  install(TARGETS penstock_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
  # The comparison with other loaders, for `penstock bench --peers`, which looks for it beside itself.
  install(FILES bench/harness.py DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock COMPONENT tool)
  install(DIRECTORY bench/peers DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock COMPONENT tool FILES_MATCHING PATTERN "*.py")
endif()
install(FILES LICENSE LICENSES/third-party.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
install(EXPORT penstock NAMESPACE penstock:: FILE penstockTargets.cmake DESTINATION ${package_dir} COMPONENT dev)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)

# The shared library contains what is third-party; a static one needs it of the program that links it.
set(penstock_archives)
set(pc_requires)
set(pc_libraries)
get_target_property(type penstock TYPE)
if(type STREQUAL STATIC_LIBRARY)
  set(penstock_archives sqlite=sqlite3)
  set(pc_requires sqlite3)
  if(TARGET penstock_third_party_uring)
    list(APPEND penstock_archives uring=uring)
    string(APPEND pc_requires " liburing")
  endif()
  foreach(library ${CMAKE_THREAD_LIBS_INIT} ${CMAKE_DL_LIBS} m)
    if(NOT library MATCHES "^-")
      string(PREPEND library -l)
    endif()
    string(APPEND pc_libraries "${library} ")
  endforeach()
endif()
configure_file(cmake/penstockConfig.cmake.in penstockConfig.cmake @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfig.cmake ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT dev)

# Relative to the .pc file itself, so that an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
  OUTPUT_VARIABLE pc_to_prefix)
configure_file(cmake/penstock.pc.in penstock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/penstock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
