# SPDX-License-Identifier: Apache-2.0
# The Debian package: cmake --preset demo && cmake --build --preset demo && cpack --preset demo (needs
# tools/install-deps --package). dpkg-shlibdeps finds its dependencies. `tools/fresh-machine deb` installs and uses it.
if(NOT (TARGET vrun AND TARGET vrun-sim AND TARGET vrund AND TARGET vrund-task))
  return()   # VRUN_MODULES left out a part of it
endif()

install(TARGETS vrun vrun-sim vrund vrund-task RUNTIME DESTINATION bin)
install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/vbatch ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/vctl DESTINATION bin)   # symlinks
install(FILES docs/man/vrun.1 docs/man/vbatch.1 docs/man/vctl.1 DESTINATION share/man/man1)
install(FILES docs/man/vrund.8 DESTINATION share/man/man8)
install(FILES LICENSE DESTINATION share/doc/vrun RENAME copyright)
install(FILES README.md CHANGELOG.md DESTINATION share/doc/vrun)
# As in the tree: the guides name each other, their pictures and deploy/ by their places.
install(DIRECTORY docs/guide docs/images DESTINATION share/doc/vrun/docs)
install(FILES docs/simulator.md docs/security.md docs/limitations.md docs/known-issues.md docs/glossary.md
  DESTINATION share/doc/vrun/docs)
install(DIRECTORY deploy DESTINATION share/doc/vrun)
install(FILES packaging/config.toml DESTINATION share/doc/vrun/examples)
install(FILES packaging/etc/controller packaging/etc/node packaging/etc/scheduler.toml DESTINATION /etc/vrun)
install(FILES packaging/systemd/vrun-controller.service packaging/systemd/vrun-node.service DESTINATION /lib/systemd/system)
# Shells find a completion by the name of the command.
set(completions ${CMAKE_BINARY_DIR}/completions)
foreach(command vrun vbatch vctl)
  install(FILES ${completions}/vrun.bash DESTINATION share/bash-completion/completions RENAME ${command})
  install(FILES ${completions}/vrun.fish DESTINATION share/fish/vendor_completions.d RENAME ${command}.fish)
endforeach()
install(FILES ${completions}/_vrun DESTINATION share/zsh/vendor-completions)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME vrun)
set(CPACK_PACKAGE_VENDOR vrun)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "run any command on another machine, in your own root file system")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Prefix a command with vrun and it runs on a machine that has the processors, the memory
or the GPUs that it needs, in the file system, the directory and the environment in which it was typed.
This package has the commands vrun, vbatch and vctl and the daemons of controllers, nodes and homes.")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The vrun authors")
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "debootstrap")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/packaging/debian/conffiles ${CMAKE_SOURCE_DIR}/packaging/debian/postinst
  ${CMAKE_SOURCE_DIR}/packaging/debian/prerm ${CMAKE_SOURCE_DIR}/packaging/debian/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
include(CPack)
