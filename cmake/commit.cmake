# cmake -DSOURCE=FOLDER -DOUT=FILE.c -P commit.cmake: writes a file that defines isotron_commit() (src/base/version.h), unless the commit of
# the working tree is unchanged. For a tree that was copied without its repository, set ISOTRON_COMMIT in the environment.
set(commit "$ENV{ISOTRON_COMMIT}")
set(git git --no-optional-locks -C ${SOURCE})
# A release has no commit, even if it was unpacked inside another repository.
execute_process(COMMAND ${git} rev-parse --show-prefix OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE status ERROR_QUIET)
if(NOT commit AND status EQUAL 0 AND prefix STREQUAL "")
  execute_process(COMMAND ${git} describe --always --dirty --abbrev=12 --exclude * OUTPUT_VARIABLE commit
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[
#include "base/version.h"

const char *isotron_commit(void) { return "@commit@"; }
]] @ONLY)
