/* Checkpoints. The input is a manifest without the hash of the manifest itself; the target computes that hash, so that
 * mutations get past its check. The target then opens, verifies and loads the checkpoint; its shard is correct. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/file.h"
#include "ckpt/ckpt.h"

enum { ITERATION = 7 };
static const char TAIL[] = "\"xxh3_128\": \"";

static Registry *small_registry(Device *device) {
    Registry *r = registry_new(NULL);
    param_add(r, (ParamSpec){.name = "layer.weight",
                             .ndim = 2,
                             .dim = {6, 3},
                             .padded = 8,
                             .tp_split = 0,
                             .init = {INIT_NORMAL, 1}});
    param_add(r, (ParamSpec){.name = "layer.bias",
                             .ndim = 1,
                             .dim = {8},
                             .tp_split = SPLIT_NONE,
                             .init = {INIT_CONSTANT, 2},
                             .groups = 2,
                             .n_parts = 2,
                             .parts = {{"q", 3}, {"k", 1}}});
    registry_allocate(r, device, F32, true);
    registry_init(r, 1);
    return r;
}

/* Saves a checkpoint in `dir` and appends its manifest without the hash to `text`. */
static void save(const char *dir, const Registry *r, Str *text) {
    json_t *state = json_pack("{s:i,s:{s:f}}", "consumed_samples", 12, "scheduler", "lr", 0.5);
    CkptItem items[] = {{.suffix = "", .flat = r->masters, .dtype = F32},
                        {.suffix = ".exp_avg", .flat = r->grads, .dtype = F32}};
    CHECK(fuzz_ok(ckpt_save(dir, &(CkptSaveOptions){.iteration = ITERATION}, NULL, r, items, 2, state)),
          "cannot save");
    json_decref(state);
    char *path = mem_printf("%s/iter_%07d/manifest.json", dir, ITERATION);
    CHECK(fuzz_ok(file_read(path, text)), "cannot read the manifest");
    free(path);
    size_t tail = strlen(TAIL) + 32 + strlen("\"}\n");
    CHECK(text->len > tail && !strncmp(text->s + text->len - tail, TAIL, strlen(TAIL)),
          "the manifest does not end in its hash");
    text->len -= tail;
}

static bool load(const char *dir, Registry *r) {
    Ckpt *ckpt;
    if (!fuzz_ok(ckpt_open(dir, ITERATION, NULL, &ckpt))) return false;
    bool sound = fuzz_ok(ckpt_verify(ckpt));
    CkptItem items[] = {{.suffix = "", .flat = r->masters, .dtype = F32, .convert = true},
                        {.suffix = ".exp_avg", .flat = r->grads, .dtype = F32, .convert = true}};
    bool loaded = fuzz_ok(ckpt_load(ckpt, r, items, ckpt_has(ckpt, ".exp_avg") ? 2 : 1));
    CHECK(sound || !loaded || !ckpt_has(ckpt, ""), "loaded what does not verify");
    ckpt_close(ckpt);
    return sound && loaded;
}

bool fuzz_one(const uint8_t *bytes, size_t n) {
    Device *device = device_cpu(1);
    Registry *r = small_registry(device);
    char *dir = fuzz_path("checkpoints"), *path = fuzz_path("checkpoints/iter_0000007/manifest.json"),
         hex[33];
    Str text = {0};
    if (!file_exists(path)) save(dir, r, &text);
    str_clear(&text);
    str_add(&text, bytes, n);
    hash_hex(hash128(bytes, n), hex);
    str_printf(&text, "%s%s\"}\n", TAIL, hex);
    free(fuzz_file("checkpoints/iter_0000007/manifest.json", text.s, text.len));
    bool ok = load(dir, r);
    registry_free(r), device_free(device), str_free(&text), free(dir), free(path);
    return ok;
}

void fuzz_seeds(Corpus *c) {
    Device *device = device_cpu(1);
    Registry *r = small_registry(device);
    char *dir = fuzz_path("seed");
    Str text = {0};
    save(dir, r, &text);
    corpus_add(c, text.s, text.len);
    registry_free(r), device_free(device), str_free(&text), free(dir);
}
