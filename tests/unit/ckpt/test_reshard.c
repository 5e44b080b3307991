/* Tests that every layout loads the checkpoints of all other layouts, and saves equal content. */
#include "unit/ckpt/world.h"

/* Compares the digest of a checkpoint, and prints the first line that differs. */
static void expect_digest(const char *dir, const char *want, const char *from, const char *to) {
    Str got = digest_of(dir);
    int64_t at = 0;
    while (got.s[at] && got.s[at] == want[at]) at++;
    while (at && got.s[at - 1] != '\n') at--;
    if (strcmp(got.s, want))
        fail_msg("from %s to %s: '%.*s', not '%.*s'", from, to, (int)strcspn(got.s + at, "\n"), got.s + at,
                 (int)strcspn(want + at, "\n"), want + at);
    str_free(&got);
}

/* ---- hashes of the content ---- */

static void expect_part(const Param *p, int part, int item, const char *digest) {
    const int64_t rows = p->spec.parts[part].rows, groups = p->spec.groups,
                  width = p->spec.ndim == 2 ? p->spec.dim[1] : 1;
    int64_t before = 0, n = 0;
    for (int i = 0; i < part; i++) before += p->spec.parts[i].rows;
    uint32_t *all = mem_alloc((size_t)(groups * rows * width) * 4);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < rows * width; i++)
            all[n++] = value(p->spec.name, item, 0, (g * p->spec.dim[0] / groups + before) * width + i);
    char hex[33];
    hash_hex(hash128(all, (size_t)n * 4), hex);
    char *line = mem_printf("%s  F32  [%lld, %lld]  %s%s (%s)\n", hex, (long long)(groups * rows),
                            (long long)width, p->spec.name, SUFFIXES[item], p->spec.parts[part].name);
    if (!strstr(digest, line)) fail_msg("%s has no line %s", digest, line);
    free(all), free(line);
}

TEST(digest_is_of_the_content) {
    char *dir = scratch_new_in_memory();
    assert_ok(run((Trip){.layout = &CASES[0], .save = dir}));
    Str digest = digest_of(dir);
    Setup *s = model_of(&CASES[0]);
    Model *m = gpt_of(s, &CASES[0], 0);
    int lines = 1, found = 0;
    for (int i = 0; i < m->registry->n; i++) {
        const Param *p = m->registry->params[i];
        for (int k = 0; k < ITEMS; k++)
            for (int part = 0; part < p->spec.n_parts && !(k && p->spec.flags & PARAM_BUFFER);
                 part++, lines++)
                expect_part(p, part, k, digest.s);
    }
    for (char *at = digest.s; (at = strchr(at, '\n')); at++) found++;
    assert_int_equal(found, lines);
    model_free(m);
    setup_free(s);
    str_free(&digest);
    scratch_remove(dir);
}

/* ---- the layouts ---- */

TEST(every_layout_loads_every_other) {
    char *from[CASE_COUNT], *to = scratch_new_in_memory();
    Str want = {0};
    for (int a = 0; a < CASE_COUNT; a++) {
        from[a] = scratch_new_in_memory();
        assert_ok(run((Trip){.layout = &CASES[a], .save = from[a], .async = a % 2}));
        if (!a) want = digest_of(from[a]);
        expect_digest(from[a], want.s, "nothing", CASES[a].name);
    }
    for (int a = 0; a < CASE_COUNT; a++)
        for (int b = 0; b < CASE_COUNT; b++) {
            if (a == b) continue;
            Err e = run((Trip){.layout = &CASES[b], .load = from[a], .save = to});
            if (e.code) fail_msg("from %s to %s: %s", CASES[a].name, CASES[b].name, e.msg);
            expect_digest(to, want.s, CASES[a].name, CASES[b].name);
        }
    for (int a = 0; a < CASE_COUNT; a++) scratch_remove(from[a]);
    str_free(&want);
    scratch_remove(to);
}
