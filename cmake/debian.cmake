# Run by CPack before it packs: adds to each Debian package what the policy wants beside the files that are installed
# everywhere: a copyright file, which names Debian's own copy of the Apache License, a changelog, and manual pages that are
# compressed.
file(READ ${CPACK_PENSTOCK_SOURCES}/LICENSES/third-party.txt third_party)
# The time that a reproducible build is given (SOURCE_DATE_EPOCH), or now.
set(ENV{LC_ALL} C)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)

foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} COMPONENT)
  set(package ${CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME})
  set(share ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}/share)
  # Where `cmake --install` puts the licences, of which copyright says the same.
  file(REMOVE_RECURSE ${share}/doc/penstock)
  # Where Debian's zsh looks.
  if(EXISTS ${share}/zsh/site-functions)
    file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
  endif()
  set(documents ${share}/doc/${package})
  file(WRITE ${documents}/copyright "Penstock ${CPACK_PACKAGE_VERSION}, copyright its authors.

Penstock is under the Apache License, version 2.0: see /usr/share/common-licenses/Apache-2.0.

${third_party}")
  file(WRITE ${documents}/changelog "penstock (${CPACK_PACKAGE_VERSION}) UNRELEASED; urgency=medium

  * Built from the sources of this version by scripts/deb.sh.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  file(GLOB manuals ${share}/man/man*/*)
  execute_process(COMMAND gzip -9 -n ${documents}/changelog ${manuals} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
