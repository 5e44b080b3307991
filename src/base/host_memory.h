/* The host memory that a process may still allocate. Host memory is limited by the machine and by the
 * process's control groups, such as a container's group. Sources: proc(5),
 * Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst. */
#pragma once

#include <stddef.h>

/* Returns the number of bytes that can be allocated without swapping: the minimum of the machine's available memory and
 * the memory left under each limit. The limits come from this process's control groups (v1 and v2) and their mounted
 * ancestors. A group's file cache counts as free, as in the machine's available memory. Missing and invalid numbers are
 * ignored, and the result is SIZE_MAX if no number is valid. Tests set `root`, which is prepended to every path; ""
 * selects the real files. */
size_t host_memory_available(const char *root);
