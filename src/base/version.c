#include "base/version.h"

/* CMakeLists.txt defines the macros that this file uses. */
const char *isotron_version(void) { return ISOTRON_VERSION; }
const char *isotron_compiler(void) { return ISOTRON_COMPILER; }
const char *isotron_flags(void) { return ISOTRON_FLAGS; }
const char *isotron_devices(void) { return ISOTRON_DEVICES; }
const char *isotron_libraries(void) { return ISOTRON_LIBRARIES; }
