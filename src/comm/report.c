#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "comm/transport.h"

static const char *const KINDS[] = {
    [COMM_BARRIER] = "barrier",
    [COMM_BROADCAST] = "broadcast",
    [COMM_ALL_REDUCE] = "all_reduce",
    [COMM_ALL_GATHER] = "all_gather",
    [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_TO_ALL] = "all_to_all",
    [COMM_SEND] = "send",
    [COMM_RECV] = "recv",
    [COMM_GRAPH] = "graph",
};
const char *comm_kind_name(CommKind kind) { return KINDS[kind]; }

static const char *const REDUCTIONS[] = {[COMM_SUM] = "sum", [COMM_MAX] = "max", [COMM_MIN] = "min"};

static const char *difference(const CommFacts *a, const CommFacts *b) {
    /* one member sends what the other receives */
    const bool message = a->kind == COMM_SEND || a->kind == COMM_RECV;
    if (!message && a->kind != b->kind) return "kind";
    if (strncmp(a->site, b->site, sizeof a->site)) return "site";
    if (a->dtype != b->dtype) return "dtype";
    if (a->n != b->n || a->sends != b->expects || a->expects != b->sends) return "count";
    if (a->reduction != b->reduction) return "reduction";
    if (a->peer != b->peer) return "root";
    return NULL;
}

static void text_of(const CommFacts *f, char *text, size_t size) {
    const bool reduces = f->kind == COMM_ALL_REDUCE || f->kind == COMM_REDUCE_SCATTER;
    char count[80] = "";
    if (f->kind != COMM_BARRIER && f->kind != COMM_ALL_TO_ALL && f->kind != COMM_GRAPH)
        snprintf(count, sizeof count, " of %lld %s", (long long)f->n, dtype_name((DType)f->dtype));
    snprintf(text, size, "%s%s%s%s at '%s'", KINDS[f->kind], reduces ? " " : "",
             reduces ? REDUCTIONS[f->reduction] : "", count, f->site);
}

bool comm_mismatch(const CommFacts *mine, int my_rank, const CommFacts *theirs, int their_rank,
                   char why[512]) {
    enum { SIZE = 512 };
    const char *what = difference(mine, theirs);
    if (!what) return false;
    char a[150], b[150], counts[120] = "";
    text_of(mine, a, sizeof a), text_of(theirs, b, sizeof b);
    if (mine->kind == COMM_ALL_TO_ALL && theirs->kind == COMM_ALL_TO_ALL)
        snprintf(counts, sizeof counts,
                 " (%lld sent, %lld expected; in the other direction, %lld sent, %lld expected)",
                 (long long)mine->sends, (long long)theirs->expects, (long long)theirs->sends,
                 (long long)mine->expects);
    snprintf(why, SIZE, "the %s differs: rank %d starts %s, rank %d starts %s%s", what, my_rank, a,
             their_rank, b, counts);
    return true;
}

static void print_facts(const CommFacts *f, FILE *file) {
    char text[150];
    text_of(f, text, sizeof text);
    fputs(text, file);
}

static void print_channel(const CommKey *key, int64_t seq, FILE *file) {
    enum { SHOWN = 64 };
    if (key->src >= 0)
        fprintf(file, "message %lld from rank %d to rank %d in the group of", (long long)seq,
                comm_member(key, 0), comm_member(key, 1));
    else
        fprintf(file, "operation %lld of", (long long)seq);
    fputs(" ranks", file);
    for (int i = 0; i < key->group.size && i < SHOWN; i++) fprintf(file, " %d", mesh_member(&key->group, i));
    if (key->group.size > SHOWN) fprintf(file, " ... (%d)", key->group.size);
}

void comm_record_print(const CommRecord *r, FILE *file) {
    print_facts(&r->facts, file);
    fputs(", ", file);
    print_channel(&r->key, r->seq, file);
    const int64_t now = clock_ns();
    fprintf(file, ": started %.3f s ago", (double)(now - r->started_ns) * 1e-9);
    if (r->done_ns)
        fprintf(file, ", done %.3f s ago\n", (double)(now - r->done_ns) * 1e-9);
    else
        fputs(", not done\n", file);
}

void comm_dump(const Comm *c, int64_t last, FILE *file) {
    CommRecorder *r = (CommRecorder *)&c->recorder; /* this changes only the lock, not the records */
    pthread_mutex_lock(&r->lock);
    if (last > COMM_RECORDS) last = COMM_RECORDS;
    for (int64_t i = r->count > last ? r->count - last : 0; i < r->count; i++) {
        fputs("  ", file);
        comm_record_print(&r->ring[i % COMM_RECORDS], file);
    }
    pthread_mutex_unlock(&r->lock);
}

static void print_ranks(const char *title, const CommKey *key, const bool *arrived, bool which, FILE *file) {
    fprintf(file, "%s:", title);
    int n = 0;
    for (int i = 0; i < comm_members(key); i++)
        if (arrived[i] == which) fprintf(file, " %d", comm_member(key, i)), n++;
    fputs(n ? "\n" : " none\n", file);
}

/* Prints the members that `rank` waits for and whose last operation differs from that of `rank`. The output reveals
 * cycles of ranks that wait for each other. */
static void print_absent(int rank, const CommWitness *witness, FILE *file) {
    const CommRecord *in = &witness[rank].last;
    fputs("    members that are not in this operation: ranks", file);
    for (int i = 0; i < comm_members(&in->key); i++) {
        const int other = comm_member(&in->key, i);
        const CommRecord *last = &witness[other].last;
        const bool is_there =
            witness[other].any && last->seq == in->seq && !memcmp(&last->key, &in->key, sizeof in->key);
        if (other != rank && !is_there) fprintf(file, " %d", other);
    }
    fputc('\n', file);
}

static void print_witness(int rank, const CommWitness *witness, FILE *file) {
    const CommWitness *w = &witness[rank];
    fprintf(file, "  rank %d %s; %s", rank, w->status,
            w->any ? "its last operation: " : "its last operation is not known\n");
    if (w->any) comm_record_print(&w->last, file);
    if (w->is_in) print_absent(rank, witness, file);
}

/* Prints missing ranks, and then ranks in other groups, because a missing rank may be waiting for one of them. */
static void print_witnesses(const CommKey *key, const bool *arrived, const CommWitness *witness, int world,
                            FILE *file) {
    bool *told = mem_zero((size_t)world, sizeof *told);
    for (int i = 0; key && i < comm_members(key); i++) {
        const int rank = comm_member(key, i);
        told[rank] = true;
        if (!arrived[i] || witness[rank].silent) print_witness(rank, witness, file);
    }
    for (int r = 0; r < world; r++)
        if (!told[r]) print_witness(r, witness, file);
    free(told);
}

static void print_operation(const CommKey *key, int64_t seq, const CommFacts *facts, const bool *arrived,
                            FILE *file) {
    fputs("  ", file);
    print_facts(facts, file);
    fputs(", ", file);
    print_channel(key, seq, file);
    fputc('\n', file);
    print_ranks("  ranks that started it", key, arrived, true, file);
    print_ranks("  ranks that did not", key, arrived, false, file);
}

void comm_report(const Comm *c, const char *why, const CommKey *key, int64_t seq, const CommFacts *facts,
                 const bool *arrived, const CommWitness *witness) {
    enum { SHOWN = 16 };
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    CHECK(file, "no memory for the report: %s", why);
    fprintf(file, "COMM FAULT %s\n", why);
    if (key) print_operation(key, seq, facts, arrived, file);
    print_witnesses(key, arrived, witness, c->world, file);
    fprintf(file, "  the last operations of rank %d, newest last:\n", c->rank);
    comm_dump(c, SHOWN, file);
    fclose(file);
    fflush(stdout); /* earlier output must precede the report */
    fwrite(text, 1, size, stderr);
    free(text);
}

void comm_warn(const Comm *c, const CommKey *key, int64_t seq, const CommFacts *facts, const bool *arrived) {
    char *text;
    size_t size;
    int missing = 0;
    for (int i = 0; i < comm_members(key); i++) {
        if (arrived[i] && comm_member(key, i) < c->rank) return;
        missing += !arrived[i];
    }
    if (!missing) return;
    FILE *file = open_memstream(&text, &size);
    CHECK(file, "no memory for a warning");
    fprintf(file, "COMM WARNING rank %d has waited %g s of at most %g s in ", c->rank,
            (double)comm_warning_ns(c) * 1e-9, c->deadline_s);
    print_facts(facts, file);
    fputs(", ", file);
    print_channel(key, seq, file);
    print_ranks("\n  for ranks", key, arrived, false, file);
    fclose(file);
    fwrite(text, 1, size, stderr);
    free(text);
}
