# The library, its headers, the tool, and what find_package(penstock) and pkg-config need to find them. The components
# are the packages of cmake/package.cmake; `cmake --install` installs all of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS penstock EXPORT penstock
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
if(TARGET penstock_tool)
  install(TARGETS penstock_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
  # The comparison with other loaders, for `penstock bench --peers`, which looks for it beside itself.
  install(FILES bench/harness.py DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock COMPONENT tool)
  install(DIRECTORY bench/peers DESTINATION ${CMAKE_INSTALL_DATADIR}/penstock COMPONENT tool FILES_MATCHING PATTERN "*.py")
endif()
install(FILES LICENSE LICENSES/third-party.txt DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
# Everything third-party is linked privately into the shared library, so the targets file is the whole package.
install(EXPORT penstock NAMESPACE penstock:: FILE penstockConfig.cmake DESTINATION ${package_dir} COMPONENT dev)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstockConfigVersion.cmake DESTINATION ${package_dir} COMPONENT dev)

# Relative to the .pc file itself, so that an installed tree can be moved.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
  OUTPUT_VARIABLE pc_to_prefix)
configure_file(cmake/penstock.pc.in penstock.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/penstock.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
