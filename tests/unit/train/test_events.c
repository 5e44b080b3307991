/* If its argument is a folder, the program only writes an event file there, which tools/oracle/read_events.py
 * reads with TensorBoard. */
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "unit/err.h"
#include "unit/temp_dir.h"

#include "train/events.h"
#include "unit/train/event_reader.h"

static const Scalar WRITTEN[] = {
    {.tag = "lm loss", .step = 1, .value = 10.5f},
    {.tag = "lm loss", .step = 127, .value = 0.1f},
    {.tag = "lm loss", .step = 128, .value = -3e-30f},
    {.tag = "lm loss vs samples", .step = 300000000000, .value = 1.0f},
    {.tag = "grad-norm", .step = 0, .value = INFINITY},
};
enum { N = sizeof WRITTEN / sizeof *WRITTEN };

static const char TEXT[] = "| seed | `5` |";

static void write_all(const char *dir) {
    Events *e;
    assert_ok(events_open(dir, &e));
    for (int i = 0; i < N; i++)
        assert_ok(events_scalar(e, WRITTEN[i].tag, WRITTEN[i].step, (double)WRITTEN[i].value));
    assert_ok(events_text(e, "options", 7, TEXT));
    events_close(e);
}

/* The expected values are those of RFC 3720, appendix B.4, and the standard check value of CRC catalogues. */
TEST(the_readers_crc_is_castagnolis) {
    unsigned char zeros[32] = {0}, ascending[32];
    for (int i = 0; i < 32; i++) ascending[i] = (unsigned char)i;
    assert_true(reader_crc("123456789", 9) == 0xE3069283u);
    assert_true(reader_crc(zeros, 32) == 0x8a9136aau);
    assert_true(reader_crc(ascending, 32) == 0x46dd794eu);
}

TEST(event_file_reads_back) {
    char dir[64];
    temp_dir(dir);
    char nested[80];
    snprintf(nested, sizeof nested, "%s/a/b", dir);
    write_all(nested);
    char pattern[200], host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.[0-9]*.%s.%ld", nested, host, (long)getpid());
    glob_t named;
    assert_int_equal(glob(pattern, 0, NULL, &named), 0);
    globfree(&named);
    EventFile f = reader_read(nested);
    assert_string_equal(f.version, "brain.Event:2");
    assert_int_equal(f.n, N + 1);
    assert_string_equal(f.scalars[N].tag, "options/text_summary");
    assert_int_equal(f.scalars[N].step, 7);
    assert_string_equal(f.scalars[N].text, TEXT);
    for (int i = 0; i < N; i++) {
        assert_string_equal(f.scalars[i].tag, WRITTEN[i].tag);
        assert_int_equal(f.scalars[i].step, WRITTEN[i].step);
        assert_memory_equal(&f.scalars[i].value, &WRITTEN[i].value, sizeof(float));
    }
    free(f.scalars);
    assert_ok(file_remove_tree(dir));
}

TEST(a_file_in_the_way_is_a_sentence) {
    char dir[64], path[80];
    temp_dir(dir);
    snprintf(path, sizeof path, "%s/file", dir);
    assert_ok(file_write_atomic(path, "x", 1));
    Events *e = NULL;
    Err err = events_open(path, &e);
    assert_int_not_equal(err.code, ERR_NONE);
    assert_null(e);
    assert_non_null(strstr(err.msg, path));
    assert_ok(file_remove_tree(dir));
}

int main(int argc, char **argv) {
    if (argc == 2) return write_all(argv[1]), 0;
    return run_all_tests(NULL, NULL);
}
