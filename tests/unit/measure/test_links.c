/* Tests that times of collectives are those calculated by hand, that they are monotone, and that damaged files are
 * refused. */
#include "unit/cmocka_all.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/str.h"
#include "measure/links.h"
#include "unit/err.h"
#include "unit/temp_dir.h"

/* A time is the result of fewer than 64 rounded operations. */
#define ROUNDING (64 * DBL_EPSILON)

typedef struct Wanted {
    int kind;
    double bytes;
    int members, per_host;
    double ns;
    LinkSource source;
} Wanted;

static void check(const Links *l, const Wanted *rows, size_t n) {
    for (const Wanted *w = rows; w < rows + n; w++) {
        LinkSource source;
        const CommKind kind = (CommKind)w->kind;
        const double ns = w->kind >= COMM_KINDS ? links_copy_time(l, (LinkCopy)w->kind, w->bytes, &source)
                                                : links_time(l, kind, w->bytes, w->members, w->per_host);
        if (w->kind < COMM_KINDS) source = links_source(l, kind, w->bytes, w->members, w->per_host);
        if (fabs(ns - w->ns) > ROUNDING * w->ns || source != w->source)
            fail_msg("row %d: %.12g, source %d, not %.12g, source %d", (int)(w - rows), ns, (int)source,
                     w->ns, (int)w->source);
    }
}
#define CHECK_ROWS(links, rows) check(links, rows, sizeof rows / sizeof *rows)

static const LinkHost HOST = {.ranks = 8,
                              .nics = 8,
                              .rails = 8,
                              .nvlink = 400,
                              .nvlink_ns = 1000,
                              .nic = 50,
                              .nic_ns = 5000,
                              .pcie = 20,
                              .pcie_ns = 10000};

/* 8e8 bytes pass through NVLink in 2e6 ns, and through a NIC in 1.6e7 ns. */
TEST(described_times) {
    static const Wanted ROWS[] = {
        {COMM_ALL_REDUCE, 8e8, 8, 8, 2 * 7 / 8. * 2e6 + 14e3, LINK_DESCRIBED},
        {COMM_ALL_GATHER, 8e8, 4, 4, 3 / 4. * 2e6 + 3e3, LINK_DESCRIBED},
        {COMM_ALL_REDUCE, 8e8, 4, 8, 2 * 3 / 4. * 2e6 + 6e3, LINK_DESCRIBED},
        {COMM_BROADCAST, 8e8, 4, 4, 2e6 + 3e3, LINK_DESCRIBED},
        {COMM_ALL_REDUCE, 8e8, 64, 8, 2 * 63 / 64. * 2e6 + 2 * (7e3 + 3 * 5e3), LINK_DESCRIBED},
        {COMM_ALL_REDUCE, 8e8, 16, 2, 2 * 15 / 16. * 8e6 + 2 * (1e3 + 3 * 5e3), LINK_DESCRIBED},
        {COMM_ALL_REDUCE, 8e8, 12, 8, 2 * 11 / 12. * 2e6 + 2 * (7e3 + 5e3), LINK_DESCRIBED},
        {COMM_REDUCE_SCATTER, 8e8, 8, 1, 7 / 8. * 1.6e7 + 7 * 5e3, LINK_DESCRIBED},
        {COMM_REDUCE_SCATTER, 8e8, 32, 4, 31 / 32. * 4e6 + 24e3 + 7 * 5e3, LINK_DESCRIBED},
        {COMM_ALL_TO_ALL, 8e8, 8, 8, 7 / 8. * 2e6 + 7e3, LINK_DESCRIBED},
        {COMM_ALL_TO_ALL, 8e8, 16, 8, 8 / 16. * 1.6e7 + 14e3 + 5e3, LINK_DESCRIBED},
        {COMM_SEND, 8e8, 2, 2, 2e6 + 1e3, LINK_DESCRIBED},
        {COMM_RECV, 8e8, 2, 1, 1.6e7 + 5e3, LINK_DESCRIBED},
        {COMM_SEND, 8e8, 16, 8, 1.6e7 + 5e3, LINK_DESCRIBED},
        {COMM_RECV, 8e8, 16, 8, 1.6e7 + 5e3, LINK_DESCRIBED},
        {COMM_BARRIER, 0, 64, 8, 2 * (7e3 + 3 * 5e3), LINK_DESCRIBED},
        {COMM_ALL_REDUCE, 8e8, 1, 1, 0, LINK_MEASURED},
        {LINK_TO_DEVICE, 8e8, 1, 1, 4e7 + 1e4, LINK_DESCRIBED},
        {LINK_TO_HOST, 0, 1, 1, 1e4, LINK_DESCRIBED},
    };
    const Links l = {.described = true, .host = HOST};
    CHECK_ROWS(&l, ROWS);
}

TEST(described_bottlenecks) {
    /* Half of the bytes leave the host at 400 GB/s, 7/8 of them on a different rail. */
    Links l = {.described = true, .host = HOST};
    l.host.nic = 400;
    CHECK_ROWS(&l,
               ((Wanted[]){{COMM_ALL_TO_ALL, 8e8, 16, 8, (7 + 8 * 7 / 8.) / 16 * 2e6 + 19e3, LINK_DESCRIBED},
                           {COMM_ALL_REDUCE, 8e8, 64, 8, 2 * 63 / 64. * 2e6 + 44e3, LINK_DESCRIBED}}));
    l.host.rails = 1;
    CHECK_ROWS(&l, ((Wanted[]){{COMM_ALL_TO_ALL, 8e8, 16, 8, 8 / 16. * 2e6 + 19e3, LINK_DESCRIBED}}));
    /* With 4 NICs, a member's share is 25 GB/s. */
    l.host.nic = 50, l.host.nics = 4;
    CHECK_ROWS(&l, ((Wanted[]){{COMM_SEND, 8e8, 2, 1, 3.2e7 + 5e3, LINK_DESCRIBED},
                               {COMM_ALL_GATHER, 8e8, 16, 8, 15 / 16. * 4e6 + 14e3 + 5e3, LINK_DESCRIBED}}));
    l.host.nics = 0;
    CHECK_ROWS(&l, ((Wanted[]){{COMM_SEND, 8e8, 2, 1, 0, LINK_NONE},
                               {COMM_SEND, 8e8, 2, 2, 2e6 + 1e3, LINK_DESCRIBED}}));
}

/* ---- files ---- */

static char path[64 + 16];

static Err read_text(Links *l, const char *text) {
    char folder[64];
    temp_dir(folder);
    snprintf(path, sizeof path, "%s/links.json", folder);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    const Err e = links_read(path, l);
    unlink(path), rmdir(folder);
    return e;
}

#define MEASURED                                                                                             \
    "{\"links\": [{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": 1e8, \"us\": "      \
    "500}, "                                                                                                 \
    "{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": 1000, \"us\": 12}, "             \
    "{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": 1000, \"us\": 8}, "              \
    "{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": 1000000, \"us\": 20}, "          \
    "{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": 2000000, \"us\": 15}, "          \
    "{\"kind\": \"all_reduce\", \"members\": 16, \"per_host\": 8, \"bytes\": 1e8, \"us\": 1000}, "           \
    "{\"kind\": \"all_to_all\", \"members\": 16, \"per_host\": 8, \"bytes\": 1e8, \"us\": 4000}, "           \
    "{\"kind\": \"send_recv\", \"members\": 2, \"per_host\": 2, \"bytes\": 1000, \"us\": 7}, "               \
    "{\"kind\": \"to_host\", \"members\": 1, \"per_host\": 1, \"bytes\": 1000000, \"us\": 30}]}"
#define DESCRIPTION                                                                                          \
    "{\"host\": {\"ranks\": 8, \"nvlink_gbytes\": 400, \"nvlink_us\": 1, \"nics\": 8, \"nic_gbytes\": 50, "  \
    "\"nic_us\": 5, \"rails\": 8, \"pcie_gbytes\": 20, \"pcie_us\": 10}}"

static void check_measured(const Links *l) {
    static const Wanted ROWS[] = {
        {COMM_ALL_REDUCE, 1000, 4, 4, 1e4, LINK_MEASURED}, /* the mean of 8 and 12 us */
        {COMM_ALL_REDUCE, 500500, 4, 4, 1.5e4, LINK_MEASURED},
        {COMM_ALL_REDUCE, 2e6, 4, 4, 2e4, LINK_MEASURED}, /* not less than 20 us */
        {COMM_ALL_REDUCE, 1e8, 4, 4, 5e5, LINK_MEASURED},
        {COMM_ALL_REDUCE, 2e8, 4, 4, 1e6, LINK_BEYOND},
        {COMM_ALL_REDUCE, 1, 4, 4, 1e4, LINK_BEYOND},
        {COMM_ALL_REDUCE, 1e8, 8, 8, 1e4 * 7 / 3 + 4.9e5 * 7 / 6, LINK_BEYOND},
        {COMM_ALL_REDUCE, 1e6, 2, 2, 1e4 + 1e4 * 2 / 3, LINK_BEYOND},
        {COMM_SEND, 1000, 8, 8, 7e3, LINK_BEYOND},
        {LINK_TO_HOST, 1e6, 1, 1, 3e4, LINK_MEASURED},
    };
    CHECK_ROWS(l, ROWS);
}

TEST(measured_times) {
    Links l = {.n = 0};
    assert_ok(read_text(&l, MEASURED));
    check_measured(&l);
    CHECK_ROWS(&l, ((Wanted[]){{COMM_ALL_REDUCE, 5e7, 16, 8, 5e5, LINK_BEYOND},
                               {COMM_ALL_REDUCE, 1e8, 32, 8, 1e6 * 31 / 30, LINK_BEYOND},
                               {COMM_ALL_TO_ALL, 1e8, 32, 8, 4e6 * 24 / 32 * 2, LINK_BEYOND},
                               {COMM_ALL_REDUCE, 1e8, 16, 4, 0, LINK_NONE},
                               {COMM_ALL_GATHER, 1e8, 4, 4, 0, LINK_NONE},
                               {LINK_TO_DEVICE, 1e6, 1, 1, 0, LINK_NONE}}));
    /* The description has a latency of 24 us for 16 members, 8 per host. */
    assert_ok(read_text(&l, DESCRIPTION));
    check_measured(&l);
    CHECK_ROWS(&l, ((Wanted[]){{COMM_ALL_REDUCE, 5e7, 16, 8, 24e3 + 976e3 / 2, LINK_BEYOND},
                               {COMM_ALL_REDUCE, 1e8, 32, 8, 24e3 * 31 / 15 + 976e3 * 31 / 30, LINK_BEYOND},
                               {COMM_ALL_REDUCE, 8e8, 16, 2, 1.5e7 + 32e3, LINK_DESCRIBED},
                               {LINK_TO_DEVICE, 8e8, 1, 1, 4e7 + 1e4, LINK_DESCRIBED}}));
    links_free(&l);
}

TEST(the_nearest_smaller_group_is_extrapolated) {
    LinkTime times[] = {{COMM_ALL_GATHER, 2, 2, 1e8, 100}, {COMM_ALL_GATHER, 8, 8, 1e8, 700}};
    const Links l = {.time = times, .n = 2};
    CHECK_ROWS(&l, ((Wanted[]){{COMM_ALL_GATHER, 1e8, 4, 4, 100 * 3 / 4. * 2, LINK_BEYOND},
                               {COMM_ALL_GATHER, 1e8, 16, 16, 700 * 15 / 14., LINK_BEYOND}}));
}

/* Results of bench comm: a result itself, and one that was compared with another program. */
TEST(results_of_bench_comm) {
    Links l = {.n = 0};
    assert_ok(read_text(
        &l, "{\"bench\": \"comm\", \"ranks\": 8, \"group\": 4, \"rows\": [{\"collective\": "
            "\"all_gather\", \"bytes\": 1000, \"out_of_place\": {\"us\": 9}, \"in_place\": {\"us\": 8}}, "
            "{\"collective\": \"broadcast\", \"bytes\": 1000, \"in_place\": {\"us\": 7}}]}"));
    assert_ok(
        read_text(&l, "{\"bench\": \"comm\", \"ranks\": 8, \"group\": 8, \"per_host\": 4, \"rows\": "
                      "[{\"collective\": \"send_recv\", \"bytes\": 1000, \"out_of_place\": {\"us\": 6}}]}"));
    assert_ok(read_text(
        &l, "{\"provenance\": {\"ranks\": 2}, \"rows\": [{\"collective\": \"all_to_all\", \"bytes\": "
            "1000, \"ours_us\": {\"median\": 5}, \"peer_us\": {\"median\": 4}}]}"));
    CHECK_ROWS(&l, ((Wanted[]){{COMM_ALL_GATHER, 1000, 4, 4, 9e3, LINK_MEASURED},
                               {COMM_BROADCAST, 1000, 4, 4, 7e3, LINK_MEASURED},
                               {COMM_SEND, 1000, 8, 4, 6e3, LINK_MEASURED},
                               {COMM_ALL_TO_ALL, 1000, 2, 2, 5e3, LINK_MEASURED}}));
    links_free(&l);
}

TEST(times_are_written_and_read) {
    Links l = {.n = 0}, copy = {.n = 0};
    assert_ok(read_text(&l, MEASURED));
    json_t *root = json_pack("{s:o}", "links", links_json(&l));
    char *text = json_dumps(root, 0);
    assert_ok(read_text(&copy, text));
    assert_int_equal(copy.n, l.n);
    assert_int_equal(l.n, 8);
    for (int i = 0; i < l.n; i++) {
        const LinkTime *a = &l.time[i], *b = &copy.time[i];
        assert_true(a->kind == b->kind && a->members == b->members && a->per_host == b->per_host);
        assert_true(a->bytes == b->bytes && fabs(a->ns - b->ns) <= ROUNDING * a->ns);
    }
    free(text), json_decref(root);
    links_free(&l), links_free(&copy);
}

/* Replaces the first occurrence of `from`. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    return mem_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

static void check_refused(const char *text, const char *says) {
    Links l = {.n = 0};
    const Err e = read_text(&l, text);
    if (e.code != ERR_USER || !strstr(e.msg, says)) fail_msg("%s: '%s', not '%s'", text, e.msg, says);
    links_free(&l);
}

/* Each number is missing, not a number, negative, too large or not whole. */
TEST(damaged_numbers_are_refused) {
    static const char TIME[] =
        "{\"links\": [{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 4, \"bytes\": "
        "1000, \"us\": 12}]}",
                      COMM[] = "{\"group\": 4, \"per_host\": 4, \"rows\": [{\"collective\": \"all_reduce\", "
                               "\"bytes\": 1000, \"out_of_place\": {\"us\": 12}}]}",
                      COMPARED[] =
                          "{\"provenance\": {\"ranks\": 4}, \"rows\": [{\"collective\": \"all_reduce\", "
                          "\"bytes\": 1000, \"ours_us\": {\"median\": 12}}]}";
    static const struct {
        const char *text, *name, *value;
        bool whole;
    } NUMBERS[] = {{DESCRIPTION, "ranks", "8", true},
                   {DESCRIPTION, "nvlink_gbytes", "400", false},
                   {DESCRIPTION, "nvlink_us", "1", false},
                   {DESCRIPTION, "nics", "8", true},
                   {DESCRIPTION, "nic_gbytes", "50", false},
                   {DESCRIPTION, "nic_us", "5", false},
                   {DESCRIPTION, "rails", "8", true},
                   {DESCRIPTION, "pcie_gbytes", "20", false},
                   {DESCRIPTION, "pcie_us", "10", false},
                   {TIME, "members", "4", true},
                   {TIME, "per_host", "4", true},
                   {TIME, "bytes", "1000", true},
                   {TIME, "us", "12", false},
                   {COMM, "group", "4", true},
                   {COMM, "per_host", "4", true},
                   {COMM, "bytes", "1000", true},
                   {COMM, "us", "12", false},
                   {COMPARED, "ranks", "4", true},
                   {COMPARED, "median", "12", false}};
    static const char *const BAD[] = {"\"1\"", "null", "true", "-1", "1e300", "[]", "1.5"};
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        char *number = mem_printf("\"%s\": %s", NUMBERS[i].name, NUMBERS[i].value),
             *says = mem_printf("'%s' is not a %s from ", NUMBERS[i].name,
                                NUMBERS[i].whole ? "whole number" : "number");
        for (size_t k = 0; k < sizeof BAD / sizeof *BAD - !NUMBERS[i].whole; k++) {
            char *value = mem_printf("\"%s\": %s", NUMBERS[i].name, BAD[k]),
                 *text = replaced(NUMBERS[i].text, number, value);
            check_refused(text, says);
            free(value), free(text);
        }
        if (NUMBERS[i].text != COMM ||
            (strcmp(NUMBERS[i].name, "group") && strcmp(NUMBERS[i].name, "per_host"))) {
            char *text = replaced(NUMBERS[i].text, number, "\"x\": 1");
            check_refused(text, says);
            free(text);
        }
        char *text = replaced(NUMBERS[i].text, NUMBERS[i].value, "NaN");
        check_refused(text, "it is not JSON");
        free(text), free(number), free(says);
    }
}

TEST(damaged_files_are_refused) {
    static const struct {
        const char *text, *says;
    } ROWS[] = {
        {"", "it is not JSON"},
        {"[]", "none of the members 'host', 'links' and 'rows'"},
        {"{\"rates\": []}", "none of the members 'host', 'links' and 'rows'"},
        {"{\"host\": 3}", "'host' is not an object"},
        {"{\"links\": {}}", "'links' is not a list"},
        {"{\"rows\": 1}", "'rows' is not a list"},
        {"{\"links\": [3]}", "'kind' is not a string"},
        {"{\"group\": 4, \"rows\": [{}]}", "'collective' is not a string"},
        {"{\"links\": [{\"kind\": \"scan\", \"members\": 4, \"per_host\": 4, \"bytes\": 1, \"us\": 1}]}",
         "'scan' is not a collective or a copy"},
        {"{\"links\": [{\"kind\": \"\", \"members\": 4, \"per_host\": 4, \"bytes\": 1, \"us\": 1}]}",
         "'' is not a collective or a copy"},
        {"{\"links\": [{\"kind\": \"all_reduce\", \"members\": 4, \"per_host\": 5, \"bytes\": 1, \"us\": "
         "1}]}",
         "all_reduce cannot have 4 members and 5 per host"},
        {"{\"links\": [{\"kind\": \"all_reduce\", \"members\": 1, \"per_host\": 1, \"bytes\": 1, \"us\": "
         "1}]}",
         "all_reduce cannot have 1 members and 1 per host"},
        {"{\"links\": [{\"kind\": \"to_host\", \"members\": 2, \"per_host\": 1, \"bytes\": 1, \"us\": 1}]}",
         "to_host cannot have 2 members and 1 per host"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) check_refused(ROWS[i].text, ROWS[i].says);
    char *text = replaced(DESCRIPTION, "\"rails\"", "\"rial\": 8, \"rails\"");
    check_refused(text, "'host' has an unknown member 'rial'");
    free(text);
    Links l = {.n = 0};
    assert_ok(read_text(&l, DESCRIPTION));
    assert_non_null(strstr(read_text(&l, DESCRIPTION).msg, "this is the second description of hosts"));
    static const char *const EMPTY[] = {"{\"rates_version\": 1, \"rates\": []}",
                                        "{\"links\": [], \"rows\": []}"};
    for (size_t i = 0; i < sizeof EMPTY / sizeof *EMPTY; i++)
        assert_non_null(strstr(read_text(&l, EMPTY[i]).msg, "contains neither times of links nor a"));
    links_free(&l);
}

/* ---- monotony ---- */

static uint32_t draw(uint64_t *at, uint32_t below) { return philox4x32(9, 0, (*at)++).v[0] % below; }
static double scaled(uint64_t *at, double x, double by) {
    return draw(at, 2) ? x * (1 + by * draw(at, 100)) : x;
}

static LinkHost random_host(uint64_t *at) {
    const double ranks = 1 + draw(at, 8), nics = 1 + draw(at, 8);
    return (LinkHost){ranks,           nics,
                      1 + draw(at, 8), 1. + draw(at, 400),
                      draw(at, 5000),  1. + draw(at, 400),
                      draw(at, 5000),  1. + draw(at, 60),
                      draw(at, 5000)};
}

/* Returns a host whose links are not slower. */
static LinkHost faster_host(const LinkHost *h, uint64_t *at) {
    LinkHost f = *h;
    f.nvlink = scaled(at, f.nvlink, 0.02), f.nic = scaled(at, f.nic, 0.02), f.pcie = scaled(at, f.pcie, 0.02);
    f.nics += draw(at, 3);
    f.nvlink_ns /= 1 + draw(at, 2), f.nic_ns /= 1 + draw(at, 2), f.pcie_ns /= 1 + draw(at, 2);
    return f;
}

/* Writes two files with times of the same sizes and groups. Times in the second file are not shorter. */
static void random_times(uint64_t *at, Str text[2]) {
    static const char *const KINDS[] = {"all_reduce", "all_gather", "all_to_all", "send_recv"};
    static const double SCALE[] = {1, 1e3, 1e6};
    for (int i = 0, n = 1 + (int)draw(at, 12); i < n; i++) {
        const int members = 2 + (int)draw(at, 15), on_host = 1 + (int)draw(at, 16);
        const double bytes = (1 + draw(at, 999)) * SCALE[draw(at, 3)], us = 1 + draw(at, 1000);
        const uint32_t kind = draw(at, 4);
        for (int k = 0; k < 2; k++)
            str_printf(&text[k],
                       "%s{\"kind\": \"%s\", \"members\": %d, \"per_host\": %d, \"bytes\": %.0f, \"us\": %g}",
                       i ? ", " : "{\"links\": [", KINDS[kind], members,
                       on_host < members ? on_host : members, bytes, k ? scaled(at, us, 0.05) : us);
    }
    str_puts(&text[0], "]}"), str_puts(&text[1], "]}");
}

TEST(predictions_are_monotone) {
    static const CommKind KINDS[] = {COMM_ALL_REDUCE, COMM_ALL_GATHER, COMM_ALL_TO_ALL, COMM_SEND};
    uint64_t at = 0;
    for (int trial = 0; trial < 1000; trial++) {
        Links fast = {.n = 0}, slow = {.n = 0};
        Str text[2] = {{0}, {0}};
        random_times(&at, text);
        assert_ok(read_text(&fast, text[0].s));
        assert_ok(read_text(&slow, text[1].s));
        str_free(&text[0]), str_free(&text[1]);
        fast.described = slow.described = draw(&at, 2);
        slow.host = random_host(&at), fast.host = faster_host(&slow.host, &at);
        for (int query = 0; query < 20; query++) {
            const CommKind kind = KINDS[draw(&at, 4)];
            const int members = 2 + (int)draw(&at, 63), per_host = 1 + (int)draw(&at, 8);
            const double bytes = 1 + draw(&at, 1000000),
                         more = bytes + (draw(&at, 2) ? draw(&at, 100000000) : 0),
                         ns = links_time(&fast, kind, bytes, members, per_host);
            assert_true(isfinite(ns) && ns >= 0);
            assert_true(links_time(&fast, kind, more, members, per_host) >= ns * (1 - ROUNDING));
            assert_true(links_time(&slow, kind, bytes, members, per_host) >= ns * (1 - ROUNDING));
        }
        links_free(&fast), links_free(&slow);
    }
}
