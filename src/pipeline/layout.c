#include "pipeline/layout.h"

#include <stdlib.h>
#include <string.h>

static PipelineLayout stages_new(int64_t ranks, int64_t chunks, Arena *arena) {
    PipelineLayout l = {.ranks = (int)ranks, .chunks = (int)chunks};
    l.stages = arena_alloc(arena, (size_t)(ranks * chunks) * sizeof *l.stages);
    l.stages[0].embedding = l.stages[ranks * chunks - 1].head = true;
    return l;
}

/* ---- options that count layers ---- */

/* Computes the number of virtual stages per rank for `layers` counted layers. */
static Err count_chunks(const Config *c, int64_t layers, int64_t *chunks) {
    int64_t per_chunk = c->num_layers_per_virtual_pipeline_stage, p = c->pipeline_model_parallel_size;
    bool given = i64_is_set(c->num_virtual_stages_per_pipeline_rank);
    *chunks = given ? c->num_virtual_stages_per_pipeline_rank : 1;
    if (!i64_is_set(per_chunk)) return ERR_OK;
    if (layers % (p * per_chunk))
        return err_user("the number of layers, %lld (including the embedding and the loss if they count), "
                        "must be a multiple of --pipeline-model-parallel-size %lld times "
                        "--num-layers-per-virtual-pipeline-stage %lld: change one of these options",
                        (long long)layers, (long long)p, (long long)per_chunk);
    *chunks = layers / (p * per_chunk);
    return ERR_OK;
}

static bool has_two_stacks(const Config *c) { return c->model == MODEL_t5; }

/* Returns the additional option that sets the number of layers in a model with two stacks. Messages list
 * it after other options. */
static const char *decoder_depth(const Config *c) {
    return has_two_stacks(c) ? ", --decoder-num-layers" : "";
}

/* Divides the layers evenly. All ranks have the same number of counted layers, unless options set different
 * numbers for the first and the last rank. All chunks on a rank have the same number of layers. The embedding
 * and the loss may count as layers; these additional layers are subtracted at the end. */
static Err cut_evenly(const Config *c, Arena *arena, PipelineLayout *out) {
    bool embedding = c->account_for_embedding_in_pipeline_split, loss = c->account_for_loss_in_pipeline_split;
    bool first = i64_is_set(c->decoder_first_pipeline_num_layers),
         last = i64_is_set(c->decoder_last_pipeline_num_layers);
    int64_t p = c->pipeline_model_parallel_size, layers = config_main_layers(c) + embedding + loss, chunks;
    int64_t rest = layers - (first ? c->decoder_first_pipeline_num_layers : 0) -
                   (last ? c->decoder_last_pipeline_num_layers : 0);
    int64_t sharers = p - first - last;
    if (sharers ? rest < sharers || rest % sharers : rest)
        return first || last
                   ? err_user("the first and the last pipeline rank leave %lld of %lld layers for %lld other "
                              "ranks, among which they cannot be divided evenly: change --num-layers%s, "
                              "--decoder-first-pipeline-num-layers or --decoder-last-pipeline-num-layers",
                              (long long)rest, (long long)layers, (long long)sharers, decoder_depth(c))
                   : err_user("%lld layers%s cannot be divided evenly among %lld pipeline ranks: change "
                              "--num-layers%s or --pipeline-model-parallel-size, or set "
                              "--pipeline-model-parallel-layout",
                              (long long)rest,
                              embedding || loss ? " (including the embedding or the loss, which count here)"
                                                : "",
                              (long long)p, decoder_depth(c));
    ERR_RETURN(count_chunks(c, layers, &chunks));
    for (int64_t rank = 0; rank < p; rank++) {
        int64_t n = rank == 0 && first      ? c->decoder_first_pipeline_num_layers
                    : rank == p - 1 && last ? c->decoder_last_pipeline_num_layers
                                            : rest / sharers;
        if (n % chunks)
            return err_user("the number of layers, %lld, of pipeline rank %lld must be a multiple of its "
                            "number of virtual stages, %lld: change --num-virtual-stages-per-pipeline-rank "
                            "or the rank's number of layers",
                            (long long)n, (long long)rank, (long long)chunks);
        /* the stages are allocated only after the check, which limits their number */
        if (rank == 0) *out = stages_new(p, chunks, arena);
        for (int64_t chunk = 0; chunk < chunks; chunk++) out->stages[chunk * p + rank].layers = n / chunks;
    }
    out->stages[0].layers -= embedding;
    out->stages[p * chunks - 1].layers += c->mtp_num_layers - loss;
    return ERR_OK;
}

/* ---- the layout string ----
 *   sequence := { item [ "*" count ] }    item := "E" | "t" | "m" | "L" | "|" | "(" sequence ")"
 * Commas are ignored. */

enum { DEPTH = 16, SYMBOLS = 1 << 18 };

typedef struct Reader {
    const char *text, *at;
    char *out; /* [SYMBOLS]: the layout with all repetitions written out */
    size_t length;
} Reader;

static Err wrong(const Reader *r, const char *what) {
    return err_user("--pipeline-model-parallel-layout '%.200s', character %lld: %s", r->text,
                    (long long)(r->at - r->text) + 1, what);
}

static char next(Reader *r) {
    r->at += strspn(r->at, ",");
    return *r->at;
}

static Err append(Reader *r, const char *symbols, size_t n) {
    if (n > SYMBOLS - r->length) return wrong(r, "too many stages and layers; lower the counts");
    memmove(r->out + r->length, symbols, n);
    r->length += n;
    return ERR_OK;
}

static Err repeat(Reader *r, size_t begin) {
    char *end;
    size_t once = r->length - begin;
    r->at++;
    long count = next(r) >= '0' && *r->at <= '9' ? strtol(r->at, &end, 10) : 0;
    if (count < 1) return wrong(r, "a positive count must follow '*'");
    for (long i = 1; i < count && once; i++) ERR_RETURN(append(r, r->out + begin, once));
    r->at = end;
    return ERR_OK;
}

static Err sequence(Reader *r, int depth) {
    for (char c; (c = next(r)) && c != ')';) {
        size_t begin = r->length;
        if (!strchr("EtmL|(", c))
            return wrong(r, "expected E, t, m, L, | or a group (...), with or without *count");
        if (c != '(') ERR_RETURN(append(r, &c, 1));
        if (c == '(') {
            if (depth == DEPTH) return wrong(r, "groups are nested too deeply; write some of them out");
            r->at++;
            ERR_RETURN(sequence(r, depth + 1));
            if (next(r) != ')') return wrong(r, "a group does not end; add ')'");
        }
        r->at++;
        if (next(r) == '*') ERR_RETURN(repeat(r, begin));
    }
    return depth || !*r->at ? ERR_OK : wrong(r, "no group is open here; remove ')'");
}

static Err cut_by_layout(const Config *c, Arena *arena, PipelineLayout *out) {
    Reader r = {.text = c->pipeline_model_parallel_layout, .at = c->pipeline_model_parallel_layout};
    r.out = arena_alloc(arena, SYMBOLS);
    ERR_RETURN(sequence(&r, 0));
    int64_t count[128] = {0}, p = c->pipeline_model_parallel_size;
    for (size_t i = 0; i < r.length; i++) count[(int)r.out[i]]++;
    if (count['E'] != 1 || r.out[0] != 'E' || count['L'] != 1 || r.out[r.length - 1] != 'L')
        return err_user("--pipeline-model-parallel-layout '%.200s' must contain one E (the embedding), at "
                        "the beginning, and one L (the loss), at the end",
                        r.text);
    if (count['t'] != config_main_layers(c))
        return err_user("--pipeline-model-parallel-layout '%.200s' has %lld layers (t), but the model has "
                        "%lld%s: change --num-layers%s or the layout",
                        r.text, (long long)count['t'], (long long)config_main_layers(c),
                        has_two_stacks(c) ? ", those of the encoder followed by those of the decoder" : "",
                        decoder_depth(c));
    const char *first = memchr(r.out, 'm', r.length), *last = memrchr(r.out, 't', r.length);
    if (count['m'] != c->mtp_num_layers)
        return err_user("--pipeline-model-parallel-layout '%.200s' has %lld MTP layers (m), but "
                        "--mtp-num-layers is %lld: change one of them",
                        r.text, (long long)count['m'], (long long)c->mtp_num_layers);
    if (first && first < last)
        return err_user("--pipeline-model-parallel-layout '%.200s' must have every m after the last t",
                        r.text);
    int64_t stages = count['|'] + 1, stage = 0;
    if (stages % p)
        return err_user("--pipeline-model-parallel-layout '%.200s' has %lld stages, which is not a multiple "
                        "of --pipeline-model-parallel-size %lld: change one of them",
                        r.text, (long long)stages, (long long)p);
    *out = stages_new(p, stages / p, arena);
    for (size_t i = 0; i < r.length; i++) {
        stage += r.out[i] == '|';
        out->stages[stage].layers += r.out[i] == 't' || r.out[i] == 'm';
    }
    return ERR_OK;
}

/* ---- the pattern of a hybrid model ---- */

/* Returns whether the pattern describes stages. A single rank computes all layers in one stage. */
static bool pattern_has_stages(const Config *c) {
    return c->pipeline_model_parallel_size > 1 && config_has_letter(c, '|');
}

/* The rules ensure that the number of stages is a multiple of the number of ranks. */
static Err cut_by_pattern(const Config *c, Arena *arena, PipelineLayout *out) {
    const int64_t p = c->pipeline_model_parallel_size;
    int64_t stages = 1, stage = 0;
    for (const char *s = c->hybrid_layer_pattern; *s; s++) stages += *s == '|';
    *out = stages_new(p, stages / p, arena);
    for (const char *s = c->hybrid_layer_pattern; *s && *s != '/'; s++)
        if (*s == '|')
            stage++;
        else
            out->stages[stage].layers++;
    out->stages[stage].layers += c->mtp_num_layers;
    return ERR_OK;
}

Err pipeline_layout(const Config *c, Arena *arena, PipelineLayout *out) {
    ERR_RETURN((c->pipeline_model_parallel_layout ? cut_by_layout
                : pattern_has_stages(c)           ? cut_by_pattern
                                                  : cut_evenly)(c, arena, out));
    for (int i = 1; i < out->ranks * out->chunks; i++)
        out->stages[i].first_layer = out->stages[i - 1].first_layer + out->stages[i - 1].layers;
    return ERR_OK;
}
