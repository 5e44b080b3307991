/* Stores the results of GEMM tuning in text files, one for each version of cuBLASLt and kind of GPU, with one
 * line for each GEMM. A lock is held while the file is open, so only one rank on a machine measures at a
 * time, and the other ranks wait for the result. */
#include "kernels/cuda/gemm/gemm_plan.cuh"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

extern "C" {
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
}

/* ---- names ---- */

static char *folder(void) {
    const char *own = getenv("ISOTRON_CACHE_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return mem_strdup(own);
    if (cache && *cache) return mem_printf("%s/isotron", cache);
    if (home && *home) return mem_printf("%s/.cache/isotron", home);
    return NULL;
}

/* Returns the path of the file in a folder, for example "gemm-130100-nvidia-h200-132.txt" in `dir`. */
static char *file_in(const char *dir, const Cuda *c) {
    char name[sizeof c->name];
    size_t n = 0;
    for (; c->name[n]; n++)
        name[n] = isalnum((unsigned char)c->name[n]) ? (char)tolower((unsigned char)c->name[n]) : '-';
    name[n] = 0;
    return mem_printf("%s/gemm-%zu-%s-%d.txt", dir, cublasLtGetVersion(), name, c->multiprocessors);
}

static char *head_of(const Cuda *c) {
    return mem_printf("isotron gemms 7: cuBLASLt %zu, %s, %d multiprocessors\n", cublasLtGetVersion(),
                      c->name, c->multiprocessors);
}

/* ---- lines ---- */

enum { ALGO_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t) };

/* Prints a record as one line, which ends with a hash of the text before it. */
static void print(Str *out, const GemmRecord *r) {
    const GemmKey *k = &r->key;
    Str line = {NULL, 0, 0};
    str_printf(&line, "%" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %d %d %d %d %d %d %d %d %d %d", k->m,
               k->n, k->k, k->multiprocessors, k->type, k->b_type, k->c_type, k->scaling, k->transpose_a,
               k->transpose_b, k->accumulate, k->epilogues, k->align_a, k->align_b, k->align_c,
               k->align_bias);
    for (const GemmChoice *c = r->choice; c < r->choice + GEMM_CHOICES; c++) {
        str_printf(&line, " %d", c->algo.fused);
        for (int i = 0; i < ALGO_WORDS; i++) str_printf(&line, " %016" PRIx64, (uint64_t)c->algo.lt.data[i]);
        str_printf(&line, " %.2f", c->us);
    }
    str_printf(&line, " %.2f", r->first_us);
    str_printf(out, "%s %016" PRIx64 "\n", line.s, hash64(line.s, line.len, 0));
    str_free(&line);
}

/* Parses the next number of a line. Returns false if there is none. */
static bool number(const char **at, int base, uint64_t *out) {
    char *end;
    errno = 0;
    *out = base == 10 ? (uint64_t)strtoll(*at, &end, 10) : strtoull(*at, &end, base);
    const bool found = !errno && end != *at && end[0] == ' ';
    *at = end;
    return found;
}

static bool microseconds(const char **at, double *out) {
    char *end;
    *out = strtod(*at, &end);
    const bool found = end != *at && end[0] == ' ';
    *at = end;
    return found;
}

static bool parse(const char *line, GemmRecord *r) {
    enum { FIELDS = 16 };
    uint64_t f[FIELDS], word;
    memset(r, 0, sizeof *r);
    for (int i = 0; i < FIELDS; i++)
        if (!number(&line, 10, &f[i])) return false;
    GemmKey *k = &r->key;
    k->m = (int64_t)f[0], k->n = (int64_t)f[1], k->k = (int64_t)f[2];
    k->multiprocessors = (int32_t)f[3];
    k->type = (uint8_t)f[4], k->b_type = (uint8_t)f[5], k->c_type = (uint8_t)f[6];
    k->scaling = (uint8_t)f[7];
    k->transpose_a = f[8] != 0, k->transpose_b = f[9] != 0, k->accumulate = f[10] != 0;
    k->epilogues = (uint8_t)f[11];
    k->align_a = (uint8_t)f[12], k->align_b = (uint8_t)f[13], k->align_c = (uint8_t)f[14];
    k->align_bias = (uint8_t)f[15];
    for (GemmChoice *c = r->choice; c < r->choice + GEMM_CHOICES; c++) {
        if (!number(&line, 10, &word)) return false;
        c->algo.fused = (uint8_t)word;
        for (int i = 0; i < ALGO_WORDS; i++) {
            if (!number(&line, 16, &word)) return false;
            c->algo.lt.data[i] = word;
        }
        if (!microseconds(&line, &c->us)) return false;
    }
    return microseconds(&line, &r->first_us);
}

/* Parses the line at `at` and returns the start of the next line, or NULL if the line is invalid. */
static const char *read_line(const char *at, GemmRecord *r) {
    const char *end = strchr(at, '\n');
    const size_t hash = 17; /* a space and 16 digits */
    if (!end || (size_t)(end - at) <= hash) return NULL;
    const size_t n = (size_t)(end - at) - hash;
    char *stop;
    const uint64_t want = strtoull(at + n, &stop, 16);
    return stop == end && want == hash64(at, n, 0) && parse(at, r) ? end + 1 : NULL;
}

/* ---- file ---- */

static bool is_sound(const GemmStore *s) {
    GemmRecord r;
    const size_t head = strlen(s->head);
    if (strlen(s->text.s) != s->text.len || strncmp(s->text.s, s->head, head)) return false;
    const char *at = s->text.s + head;
    while (at && *at) at = read_line(at, &r);
    return at != NULL;
}

static void start_again(GemmStore *s) {
    str_clear(&s->text);
    str_puts(&s->text, s->head);
}

static void warn(GemmState *state, const char *what) {
    if (!state->warned) fprintf(stderr, "warning: the results of GEMM tuning cannot be stored: %s\n", what);
    state->warned = true;
}

/* Locks the store. If the file system does not support locks, the store works without one. */
static Err lock(GemmStore *s, const char *dir) {
    char *path = mem_printf("%s/lock", dir);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const Err e = s->lock < 0 ? file_failed("open", path) : ERR_OK;
    free(path);
    s->alone = s->lock >= 0 && !flock(s->lock, LOCK_EX);
    return e;
}

GemmStore gemm_store_open(const Cuda *c, GemmState *state) {
    GemmStore s = {-1, false, NULL, head_of(c), {NULL, 0, 0}};
    char *dir = folder();
    start_again(&s);
    if (!dir) {
        warn(state, "ISOTRON_CACHE_DIR and HOME are not set");
        return s;
    }
    s.path = file_in(dir, c);
    Err e = file_mkdirs(dir);
    if (!e.code) e = lock(&s, dir);
    free(dir);
    if (e.code) warn(state, e.msg); /* the existing contents can still be read */
    if (!file_exists(s.path)) return s;
    str_clear(&s.text);
    e = file_read(s.path, &s.text);
    if (e.code || !is_sound(&s)) {
        fprintf(stderr, "warning: '%s' is damaged or from another version: GEMMs are measured again\n",
                s.path);
        start_again(&s);
    }
    return s;
}

bool gemm_store_find(const GemmStore *s, const GemmKey *key, GemmRecord *out) {
    for (const char *at = s->text.s + strlen(s->head); *at;) {
        at = read_line(at, out);
        if (!memcmp(&out->key, key, sizeof *key)) return true;
    }
    return false;
}

bool gemm_store_add(GemmStore *s, GemmState *state, const GemmRecord *r) {
    if (s->lock < 0) return false;
    Str text = {NULL, 0, 0};
    GemmRecord old;
    str_puts(&text, s->head);
    for (const char *at = s->text.s + strlen(s->head), *next; *at; at = next) {
        next = read_line(at, &old);
        if (memcmp(&old.key, &r->key, sizeof old.key)) str_add(&text, at, (size_t)(next - at));
    }
    print(&text, r);
    str_free(&s->text);
    s->text = text;
    const Err e = file_write_atomic(s->path, s->text.s, s->text.len);
    if (e.code) warn(state, e.msg);
    return !e.code;
}

void gemm_store_close(GemmStore *s) {
    if (s->lock >= 0) close(s->lock);
    free(s->path), free(s->head);
    str_free(&s->text);
}
