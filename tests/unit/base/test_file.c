#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit/err.h"
#include "unit/temp_dir.h"

#include "base/file.h"
#include "base/mem.h"

enum { PATH_BYTES = 128 };

/* Creates a folder that contains "here" and "there", and makes it the working directory while a test runs. */
static void enter(char dir[64]) {
    temp_dir(dir);
    assert_int_equal(chdir(dir), 0);
    assert_int_equal(mkdir("here", 0777), 0);
    assert_int_equal(mkdir("there", 0777), 0);
}

static void leave(const char *dir) {
    assert_int_equal(chdir("/"), 0);
    assert_ok(file_remove_tree(dir));
    assert_false(file_exists(dir));
}

static void assert_written(const char *path, const char *text) {
    assert_ok(file_write_atomic(path, text, strlen(text)));
}

static void assert_holds(const char *path, const char *text) {
    Str s = {0};
    assert_ok(file_read(path, &s));
    assert_string_equal(s.s, text);
    str_free(&s);
}

/* Returns the type of the path, such as S_IFLNK, without following links. */
static mode_t kind_of(const char *path) {
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & S_IFMT;
}

static void assert_refused(const char *path, const char *why) {
    Err e = file_write_atomic(path, "x", 1);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, why));
    e = file_check_target(path);
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, why));
}

TEST(writing_replaces_and_a_missing_folder_is_a_sentence) {
    char dir[64];
    enter(dir);
    assert_refused("a/b/x", "cannot create");
    assert_ok(file_mkdirs("a/b"));
    assert_ok(file_check_target("a/b/x"));
    assert_false(file_is_stream("a/b/x"));
    const bool is_dir[] = {file_is_dir("a/b"), file_is_dir("a/b/x"), file_is_dir("a/b"), file_is_dir("a/c")};
    assert_true(is_dir[0] && !is_dir[1] && is_dir[2] && !is_dir[3]);
    assert_false(file_exists("a/b/x")); /* the check wrote nothing */
    assert_written("a/b/x", "one");
    assert_int_equal(link("a/b/x", "old"), 0);
    assert_written("a/b/x", "three");
    assert_holds("a/b/x", "three");
    assert_holds(
        "old", "one"); /* the name now refers to a new file, so that no reader sees a partially written one */
    FileMap map;
    assert_ok(file_map("a/b/x", &map));
    assert_memory_equal(map.bytes, "three", 5);
    file_unmap(&map);
    assert_int_equal(file_map("a/b", &map).code, ERR_USER);
    char name[NAME_MAX + 2] = "";
    memset(name, 'x', sizeof name - 1);
    assert_int_equal(file_map(name, &map).code, ERR_USER);
    assert_refused("a/b/x/y", "Not a directory");
    leave(dir);
}

TEST(a_symlink_stays_and_what_it_leads_to_is_replaced) {
    char dir[64], full[PATH_BYTES];
    enter(dir);
    assert_written("there/file", "one");
    assert_int_equal(link("there/file", "old"), 0);
    assert_int_equal(symlink("../there/file", "here/second"),
                     0); /* relative to the folder that contains the link */
    snprintf(full, sizeof full, "%s/here/second", dir);
    assert_int_equal(symlink(full, "first"), 0);
    assert_ok(file_check_target("first"));
    assert_written("first", "two");
    assert_holds("there/file", "two");
    assert_holds("old", "one");
    assert_int_equal(kind_of("first"), S_IFLNK);
    assert_int_equal(kind_of("here/second"), S_IFLNK);
    leave(dir);
}

TEST(a_symlink_to_nothing_gets_its_file) {
    char dir[64];
    enter(dir);
    assert_int_equal(symlink("../there/file", "here/link"), 0);
    assert_written("here/link", "new");
    assert_int_equal(kind_of("here/link"), S_IFLNK);
    assert_int_equal(kind_of("there/file"), S_IFREG);
    assert_holds("there/file", "new");
    assert_int_equal(symlink("nowhere/file", "lost"), 0);
    assert_refused("lost", "cannot create");
    assert_int_equal(symlink("circle", "circle"), 0);
    assert_refused("circle", "cannot open 'circle'");
    leave(dir);
}

TEST(two_paths_to_one_file_are_found_before_it_or_its_folders_exist) {
    char dir[64];
    static const struct {
        const char *a, *b;
        bool same;
    } PATHS[] = {
        {"here", "there/../here", true},  {"here", "there", false},         {"here/x", "./here//x", true},
        {"here/x", "there/x", false},     {"link", "there/file", true},     {"here", "here/x", false},
        {"a/b/c", "./a/b/c/", true},      {"a/b/c", "a/x/c", false},        {"a/b/c", "a/b", false},
        {"here/a/b", "there/a/b", false}, {"here/a/b", "to-here/a/b", true}};
    enter(dir);
    assert_int_equal(symlink("there/file", "link"), 0);
    assert_int_equal(symlink("here", "to-here"), 0);
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++)
        if (file_is_same(PATHS[i].a, PATHS[i].b) != PATHS[i].same)
            fail_msg("%s and %s: not %d", PATHS[i].a, PATHS[i].b, PATHS[i].same);
    leave(dir);
}

TEST(a_fifo_gets_the_bytes_and_stays) {
    char dir[64], got[8] = "";
    enter(dir);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "link"), 0);
    const int reader = open("fifo", O_RDONLY | O_NONBLOCK);
    assert_ok(file_check_target("link"));
    assert_true(file_is_stream("link"));
    assert_written("fifo", "one");
    assert_written("link", "two");
    assert_int_equal(read(reader, got, sizeof got), 6);
    assert_memory_equal(got, "onetwo", 6);
    assert_int_equal(kind_of("fifo"), S_IFIFO);
    assert_int_equal(kind_of("link"), S_IFLNK);
    close(reader);
    FileMap map;
    Str text = {0};
    assert_int_equal(file_map("fifo", &map).code, ERR_USER); /* and does not wait for a writer */
    assert_int_equal(file_read("fifo", &text).code, ERR_USER);
    assert_int_equal(file_read("/dev/null", &text).code, ERR_USER);
    assert_ok(file_read_stream("/dev/null", &text));
    assert_string_equal(text.s, "");
    str_free(&text);
    leave(dir);
}

TEST(own_output_is_written_to_behind_what_was_printed) {
    char dir[64];
    enter(dir);
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO), file = open("out", O_WRONLY | O_CREAT, 0600);
    dup2(file, STDOUT_FILENO);
    printf("before, ");
    const Err e = file_write_atomic("out", "written, ", 9);
    printf("behind");
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept), close(file);
    assert_ok(e);
    assert_holds("out", "before, written, behind");
    leave(dir);
}

TEST(a_folder_is_refused) {
    char dir[64];
    enter(dir);
    assert_int_equal(symlink("there", "link"), 0);
    assert_refused("here", "'here' is a folder");
    assert_refused("here/", "is a folder");
    assert_refused("link", "'link' is a folder");
    leave(dir);
}

/* The permissions of /proc allow root to create files, but no file can be created there. */
TEST(a_folder_without_files_is_said_before) {
    const Err e = file_check_target("/proc/report.json");
    assert_int_equal(e.code, ERR_USER);
    assert_non_null(strstr(e.msg, "cannot create a file in '/proc'"));
}

static int of_unnamed; /* errno of O_TMPFILE, as on NFS or an old kernel, or 0 if it succeeds */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
    const bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    va_list mode;
    va_start(mode, flags);
    const int fd = __real_open(path, flags, flags & O_CREAT || unnamed ? va_arg(mode, mode_t) : 0);
    va_end(mode);
    if (!of_unnamed || !unnamed) return fd;
    if (fd >= 0) close(fd);
    errno = of_unnamed;
    return -1;
}

TEST(a_check_leaves_the_file_and_its_folder_as_they_were) {
    static const int ERRORS[] = {0, EOPNOTSUPP, EISDIR, EINVAL};
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) {
        char dir[64];
        enter(dir);
        assert_written("here/file", "good");
        of_unnamed = ERRORS[i];
        assert_ok(file_check_target("here/file"));
        assert_ok(file_check_target("here/other"));
        of_unnamed = 0;
        assert_holds("here/file", "good");
        assert_int_equal(unlink("here/file"), 0);
        assert_int_equal(rmdir("here"), 0); /* empty */
        leave(dir);
    }
}

TEST(what_may_not_be_written_to_is_said_before) {
    if (geteuid() == 0) skip(); /* root may write everywhere */
    char dir[64];
    enter(dir);
    assert_int_equal(chmod("here", 0500), 0);
    assert_refused("here/file", "Permission denied");
    assert_int_equal(mkfifo("fifo", 0400), 0);
    assert_refused("fifo", "Permission denied");
    leave(dir);
}

/* A successful call must not change errno, which may be left over from an earlier call. */
TEST(an_old_error_repeats_no_write) {
    int fd[2];
    char got[8] = "";
    assert_int_equal(pipe2(fd, O_NONBLOCK), 0);
    errno = EINTR;
    assert_ok(file_write_all(fd[1], "a pipe", "once", 4));
    assert_int_equal(read(fd[0], got, sizeof got), 4);
    assert_string_equal(got, "once");
    close(fd[0]), close(fd[1]);
}
