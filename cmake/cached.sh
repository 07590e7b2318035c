#!/bin/sh
# cached.sh FOLDER CCACHE COMPILER ARGUMENT...: compiles what ccache does not have. Paths below FOLDER count relative to it;
# the sloppiness is what precompiled headers need.
export CCACHE_BASEDIR="$1" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
# A precompiled header has 100 MB, and every file that uses it is looked up by its checksum: that is taken once.
export CCACHE_PCH_EXTSUM=1
ccache=$2
shift
"$@" || exit
while [ $# -gt 1 ]; do
  case $1$2 in
    -o*.gch) "$ccache" --hash-file "$2" > "$2.sum" ;;
  esac
  shift
done
