/* How much of the host's memory a process may still take: the machine's, and what its control groups leave (a
 * container's limit is one). Linux: proc(5), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst. */
#ifndef ISOTRON_BASE_HOST_MEMORY_H
#define ISOTRON_BASE_HOST_MEMORY_H

#include <stddef.h>

/* Bytes that can be taken without swapping: the smallest of what the machine has and of what is left of the
 * limit of each control group that this process is in, of either version, itself and those above it as far as
 * they are mounted. What a group caches of files counts as free, as it does for the machine. A number that is
 * missing or makes no sense says nothing; SIZE_MAX: none of them says anything. `root` stands before the path
 * of every file: "" but for made-up files. */
size_t host_memory_available(const char *root);

#endif
