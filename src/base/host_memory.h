/* The host memory that a process may still allocate: limited by the machine and by the process's control
 * groups (a container's limit is one). Linux: proc(5), Documentation/admin-guide/cgroup-v2.rst,
 * cgroup-v1/memory.rst. */
#pragma once

#include <stddef.h>

/* Bytes that can be allocated without swapping: the smallest of the machine's available memory and the
 * memory left under the limit of each control group of this process and its mounted ancestors, of both
 * versions. A group's file cache counts as free, as in the machine's available memory. Missing or nonsensical numbers
 * are ignored; SIZE_MAX: there is no valid number. `root` is a prefix of every path, for tests: "" reads the real
 * files. */
size_t host_memory_available(const char *root);
