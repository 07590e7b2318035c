# Third-party libraries, from the system or from an offline bundle (PENSTOCK_DEPS).
if(PENSTOCK_DEPS)
  get_filename_component(bundle ${PENSTOCK_DEPS} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  set(bundled_libraries ${bundle}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
  if(NOT IS_DIRECTORY ${bundled_libraries})
    message(FATAL_ERROR "PENSTOCK_DEPS: there is no ${bundled_libraries}: is the bundle for another architecture?")
  endif()
  list(PREPEND CMAKE_PREFIX_PATH ${bundle}/usr)
endif()

find_package(Threads REQUIRED)

# A header and a library by name; works for system packages and for an unpacked bundle alike.
function(penstock_find_library target header library)
  find_path(${target}_INCLUDE ${header} HINTS ${bundle}/usr/include)
  if(NOT ${target}_INCLUDE)
    return()
  endif()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  # Imported, so included as a system header: its warnings are not ours.
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${${target}_INCLUDE})
  if(library)
    find_library(${target}_LIBRARY NAMES lib${library}.a ${library} HINTS ${bundled_libraries})
    if(NOT ${target}_LIBRARY)
      message(FATAL_ERROR "found ${header} but not the library ${library}: install its -dev package")
    endif()
    target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  endif()
endfunction()

penstock_find_library(third_party_uring liburing.h uring)
penstock_find_library(third_party_json nlohmann/json.hpp "")
penstock_find_library(third_party_cli11 CLI/CLI.hpp "")
penstock_find_library(third_party_xxhash xxhash.h "")
penstock_find_library(third_party_sqlite sqlite3.h sqlite3)
foreach(name json cli11 xxhash sqlite)
  if(NOT TARGET third_party_${name})
    # An sdist does not hold scripts/install-deps.sh, so the packages are named.
    message(FATAL_ERROR "${name} not found: install libcli11-dev, nlohmann-json3-dev, libxxhash-dev, libsqlite3-dev and "
      "liburing-dev, as scripts/install-deps.sh does, or set PENSTOCK_DEPS to a bundle from scripts/bundle-deps.sh")
  endif()
endforeach()
# Its archive wants these of the system.
target_link_libraries(third_party_sqlite INTERFACE m ${CMAKE_DL_LIBS})
if(NOT TARGET third_party_uring)
  message(STATUS "liburing not found: the uring engine is left out, posix serves")
endif()
