/* The host memory that a process may still allocate. It is limited by the machine and by the process's
 * control groups, such as that of a container. Source: proc(5), Documentation/admin-guide/cgroup-v2.rst,
 * cgroup-v1/memory.rst. */
#pragma once

#include <stddef.h>

/* The number of bytes that can be allocated without swapping: the minimum of the machine's available memory
 * and the memory left under each limit. The limits are those of the control groups (v1 and v2) of this
 * process and of their mounted ancestors. A group's file cache counts as free, as it does in the machine's
 * available memory. Missing and invalid numbers are ignored; the result is SIZE_MAX if no number is valid.
 * `root` is put before every path, for tests; "" reads the real files. */
size_t host_memory_available(const char *root);
