/* Tests the computation of available memory with artificial folders /proc and /sys/fs/cgroup. */
#include "unit/cmocka_all.h"

#include <stdint.h>
#include <string.h>

#include "base/file.h"
#include "base/host_memory.h"
#include "base/mem.h"
#include "unit/temp_dir.h"

#define V1 "/sys/fs/cgroup/memory"
#define V2 "/sys/fs/cgroup"

enum { FILES = 12 };
typedef struct File {
    const char *path, *content;
} File;

static size_t available(const File *files) {
    char root[64];
    temp_dir(root);
    for (; files->path; files++) {
        char *path = mem_printf("%s%s", root, files->path), *name = strrchr(path, '/');
        *name = 0;
        assert_false(file_mkdirs(path).code);
        *name = '/';
        assert_false(file_write_atomic(path, files->content, strlen(files->content)).code);
        free(path);
    }
    const size_t n = host_memory_available(root);
    assert_false(file_remove_tree(root).code);
    return n;
}

#define MEMINFO                                                                                              \
    { "/proc/meminfo", "MemTotal:       9000 kB\nMemFree:  7 kB\nMemAvailable:    5000 kB\n" }
#define MOUNTED_V2                                                                                           \
    {                                                                                                        \
        "/proc/self/mountinfo", "24 1 0:22 / /proc rw,nosuid - proc proc rw\n"                               \
                                "31 23 0:28 / " V2 " rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n" \
    }
#define MOUNTED_V1                                                                                           \
    {                                                                                                        \
        "/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"        \
                                "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                \
                                "35 31 0:32 / " V1 " rw,relatime - cgroup cgroup rw,memory\n"                \
    }
#define MB                 *(size_t)1000000
#define EXPECT(bytes, ...) assert_int_equal(available((const File[FILES]){__VA_ARGS__}), bytes)

TEST(a_machine_without_groups_has_what_it_says) {
    EXPECT(5000 << 10, MEMINFO);
    EXPECT(SIZE_MAX, {0});
    EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup", "0::/\n"}, MOUNTED_V2);
}

TEST(numbers_that_make_no_sense_say_nothing) {
    static const char *const BAD[] = {"MemAvailable: -5 kB\n",
                                      "MemAvailable: 99999999999999999999999 kB\n",
                                      "MemAvailable: 18446744073709551615 kB\n",
                                      "MemAvailable: 5x kB\n",
                                      "MemAvailable:",
                                      "",
                                      "\n\n",
                                      " MemAvailable: 5 kB\n"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) EXPECT(SIZE_MAX, {"/proc/meminfo", BAD[i]});
    static const char *const LIMITS[] = {"max\n", "-1\n", "", "1e3\n", "18446744073709551616\n",
                                         "max 5", "0x5"};
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++)
        EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup", "0::/a\n"}, MOUNTED_V2,
               {V2 "/a/memory.max", LIMITS[i]}, {V2 "/a/memory.current", "7\n"});
}

TEST(the_smallest_of_a_group_and_those_above_it_counts) {
    EXPECT(3 MB, MEMINFO, {"/proc/self/cgroup", "0::/a/b\n"}, MOUNTED_V2, {V2 "/a/b/memory.max", "3000000\n"},
           {V2 "/a/memory.max", "4000000\n"});
    EXPECT(2 MB, MEMINFO, {"/proc/self/cgroup", "0::/a/b\n"}, MOUNTED_V2, {V2 "/a/b/memory.max", "max\n"},
           {V2 "/a/memory.max", "2000000\n"}, {V2 "/c/memory.max", "1\n"});
    EXPECT(1 MB, MEMINFO, {"/proc/self/cgroup", "0::/a/b\n"}, MOUNTED_V2, {V2 "/a/b/memory.max", "3000000\n"},
           {V2 "/memory.max", "1000000"}, {"/sys/fs/memory.max", "5"});
    EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup", "0::/a\n"}, MOUNTED_V2,
           {V2 "/a/memory.max", "900000000000\n"});
}

/* cgroup v1 has a separate tree for each controller. */
TEST(groups_of_the_first_version) {
    static const char GROUPS[] = "9:name=memory:/n\n5:cpu,memory_x:/c\n4:hugetlb,memory:/a/b:c\n0::/v2\n";
    EXPECT(3 MB, MEMINFO, {"/proc/self/cgroup", GROUPS}, MOUNTED_V1,
           {V1 "/a/b:c/memory.limit_in_bytes", "3000000\n"}, {V1 "/n/memory.limit_in_bytes", "1\n"},
           {V1 "/c/memory.limit_in_bytes", "2\n"}, {V2 "/cpu/a/b:c/memory.limit_in_bytes", "3\n"},
           {V1 "/memory.limit_in_bytes", "9223372036854771712\n"});
    EXPECT(2 MB, MEMINFO, {"/proc/self/cgroup", GROUPS}, MOUNTED_V1,
           {V1 "/a/memory.limit_in_bytes", "2500000\n"}, {V1 "/a/memory.usage_in_bytes", "1000000\n"},
           {V1 "/a/memory.stat", "inactive_file 1\ntotal_inactive_file 200000\ntotal_active_file 300000\n"});
}

/* All memory of a group except its file cache counts as used. */
TEST(what_a_group_has_taken_is_gone) {
#define TAKEN(current, stat)                                                                                 \
    MEMINFO, {"/proc/self/cgroup", "0::/a\n"}, MOUNTED_V2, {V2 "/a/memory.max", "4000000\n"},                \
        {V2 "/a/memory.current", current}, {V2 "/a/memory.stat", stat}
    EXPECT(1 MB, TAKEN("3000000\n", "anon 3000000\n"));
    EXPECT(3 MB, TAKEN("3000000\n", "anon 1000000\nfile 9\ninactive_file 1500000\nactive_file 500000\n"));
    EXPECT(4 MB, TAKEN("3000000\n", "inactive_file 2000000\nactive_file 2000000\n")); /* counted later */
    EXPECT(4 MB, TAKEN("3000000\n", "inactive_file 18446744073709551615\nactive_file 2\n"));
    EXPECT(0, TAKEN("5000000\n", ""));
    EXPECT(4 MB, TAKEN("much\n", "active_file 5\n"));
}

/* The path of the group may be the host's although only the container's folder is mounted, or it may not exist. */
TEST(a_mount_may_show_a_part_of_the_tree) {
#define PART(group, shown)                                                                                   \
    MEMINFO, {"/proc/self/cgroup", "0::" group "\n"},                                                        \
        {"/proc/self/mountinfo", "31 23 0:28 " shown " /cg rw - cgroup2 cgroup2 rw\n"},                      \
        {"/cg/memory.max", "3000000\n"}, {"/cg/in/memory.max", "2000000\n"},                                 \
        {"/cg/box/in/memory.max", "1000000\n"}
    EXPECT(3 MB, PART("/box", "/box"));
    EXPECT(2 MB, PART("/box/in", "/box"));
    EXPECT(3 MB, PART("/boxer/in", "/box"));
    EXPECT(1 MB, PART("/box/in", "/"));
    EXPECT(3 MB, PART("/../in", "/"));
    EXPECT(3 MB, PART("/elsewhere", "/../.."));
    EXPECT(3 MB, PART("", "/"));
}

TEST(lines_that_make_no_sense_are_passed_over) {
    EXPECT(2 MB, MEMINFO, {"/proc/self/cgroup", "\n:\n0\n0:\n0::/a\n0::/b\n"},
           {"/proc/self/mountinfo",
            "\n - \n1 2 3\n - cgroup2\n1 2 3 / - cgroup2 x\n1 2 3 / /cg - cgroup2 x y\n"},
           {"/cg/a/memory.max", "2000000\n"}, {"/cg/b/memory.max", "1\n"});
    EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup", "0:/a"}, MOUNTED_V2, {V2 "/a/memory.max", "5\n"});
    EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup/x", ""}, MOUNTED_V2, {V2 "/memory.max", "5\n"});
    EXPECT(5000 << 10, MEMINFO, {"/proc/self/cgroup", "0::/a\n"}, MOUNTED_V2, {V2 "/a/memory.max/x", ""});
}

TEST(this_machine_has_memory) { assert_true(host_memory_available("") > 1 MB); }
