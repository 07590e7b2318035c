#!/bin/sh
# cached.sh FOLDER CCACHE COMPILER ARGUMENT...: compiles what ccache does not have. Paths below FOLDER count relative to it;
# the sloppiness is what precompiled headers need.
export CCACHE_BASEDIR="$1" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
# A precompiled header has 100 MB, and every file that uses it is looked up by its checksum: that is taken once.
export CCACHE_PCH_EXTSUM=1
shift
ccache=$1
header=
previous=
for argument in "$@"; do
  case $previous$argument in
    -o*.gch) header=$argument ;;
  esac
  previous=$argument
done
# One that is there already would be looked at, and make this one another than in a new clone.
[ -z "$header" ] || rm -f "$header" "$header.sum"
"$@" || exit
[ -z "$header" ] || "$ccache" --hash-file "$header" > "$header.sum"
