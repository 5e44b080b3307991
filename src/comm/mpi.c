/* A wire (exchange.h) that uses MPI's point-to-point messages. */
#include "comm/exchange.h"

#ifndef ISOTRON_MPI

bool comm_mpi_built(void) { return false; }

Comm *comm_mpi(const CommOptions *options) {
    (void)options;
    fault(__FILE__, __LINE__, "ISOTRON_MPI",
          "this program was built without MPI; install Open MPI and build again");
}

#else

#include <mpi.h>
#include <stdlib.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"

#define MPI_CHECK(call) mpi_check(call, #call)

/* PIECE is the maximum number of bytes per message, because MPI's counts are int. */
enum { PIECE = 1 << 30, CONTROL_TAG = 0 };

struct WireMessage {
    int pieces;
    MPI_Request request[];
};

typedef struct Said { /* an announcement being sent */
    Announcement a;
    MPI_Request request;
    struct Said *next;
} Said;

typedef struct Mpi {
    MPI_Comm control, data;
    Said *said;
    Announcement incoming;
    MPI_Request listening;
} Mpi;

static void mpi_check(int rc, const char *call) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (rc != MPI_SUCCESS) MPI_Error_string(rc, text, &n);
    CHECK(rc == MPI_SUCCESS, "%s: %s", call, text);
}

/* ---- announcements ---- */

static void forget_said(Mpi *mpi) {
    for (Said **at = &mpi->said, *s; (s = *at);) {
        int done;
        MPI_CHECK(MPI_Test(&s->request, &done, MPI_STATUS_IGNORE));
        if (done)
            *at = s->next, free(s);
        else
            at = &s->next;
    }
}

static void mpi_say(void *wire, const Announcement *a, int to) {
    Mpi *mpi = wire;
    Said *s = mem_alloc(sizeof *s);
    *s = (Said){.a = *a, .next = mpi->said};
    MPI_CHECK(MPI_Isend(&s->a, sizeof s->a, MPI_BYTE, to, CONTROL_TAG, mpi->control, &s->request));
    mpi->said = s;
    forget_said(mpi);
}

static void listen(Mpi *mpi) {
    MPI_CHECK(MPI_Irecv(&mpi->incoming, sizeof mpi->incoming, MPI_BYTE, MPI_ANY_SOURCE, CONTROL_TAG,
                        mpi->control, &mpi->listening));
}

static bool mpi_hear(void *wire, Announcement *a, int *from) {
    Mpi *mpi = wire;
    int come;
    MPI_Status status;
    MPI_CHECK(MPI_Test(&mpi->listening, &come, &status));
    if (!come) return false;
    *a = mpi->incoming;
    *from = status.MPI_SOURCE;
    listen(mpi);
    return true;
}

/* ---- data ---- */

static WireMessage *message_new(int64_t bytes) {
    const size_t pieces = (size_t)((bytes + PIECE - 1) / PIECE);
    WireMessage *m = mem_alloc(sizeof *m + pieces * sizeof *m->request);
    m->pieces = (int)pieces;
    return m;
}

static int piece_size(int64_t bytes, int i) {
    const int64_t left = bytes - (int64_t)i * PIECE;
    return (int)(left < PIECE ? left : PIECE);
}

static WireMessage *mpi_send(void *wire, int to, int tag, const void *from, int64_t bytes) {
    const Mpi *mpi = wire;
    WireMessage *m = message_new(bytes);
    for (int i = 0; i < m->pieces; i++)
        MPI_CHECK(MPI_Isend((const char *)from + (int64_t)i * PIECE, piece_size(bytes, i), MPI_BYTE, to, tag,
                            mpi->data, &m->request[i]));
    return m;
}

static WireMessage *mpi_receive(void *wire, int from, int tag, void *to, int64_t bytes) {
    const Mpi *mpi = wire;
    WireMessage *m = message_new(bytes);
    for (int i = 0; i < m->pieces; i++)
        MPI_CHECK(MPI_Irecv((char *)to + (int64_t)i * PIECE, piece_size(bytes, i), MPI_BYTE, from, tag,
                            mpi->data, &m->request[i]));
    return m;
}

static bool mpi_done(void *wire, WireMessage *m) {
    int done;
    (void)wire;
    MPI_CHECK(MPI_Testall(m->pieces, m->request, &done, MPI_STATUSES_IGNORE));
    if (done) free(m);
    return done;
}

/* ---- the world ---- */

/* Waits for messages. A waiting rank sleeps, so that other ranks can use the core. */
static void mpi_rest(void *wire, int tries) {
    enum { STEP_NS = 20000, LONGEST_NS = 500000 };
    const int64_t ns = (int64_t)STEP_NS * tries;
    (void)wire;
    nanosleep(&(struct timespec){0, ns < LONGEST_NS ? (long)ns : LONGEST_NS}, NULL);
}

static const char *mpi_lost(void *wire, int rank) {
    (void)wire, (void)rank;
    return NULL; /* never needed, because mpirun ends all processes if one process has ended */
}

static _Noreturn void mpi_end(void *wire) {
    (void)wire;
    MPI_Abort(MPI_COMM_WORLD, ERR_INFRA);
    abort();
}

static void mpi_free(void *wire) {
    Mpi *mpi = wire;
    while (mpi->said) forget_said(mpi);
    MPI_CHECK(MPI_Cancel(&mpi->listening));
    MPI_CHECK(MPI_Wait(&mpi->listening, MPI_STATUS_IGNORE));
    MPI_CHECK(MPI_Comm_free(&mpi->control));
    MPI_CHECK(MPI_Comm_free(&mpi->data));
    free(mpi);
}

static void finalize(void) { MPI_Finalize(); }

/* Initializes MPI, once per process. MPI is finalized when the process ends. A process can create several worlds in
 * sequence. */
static void begin_mpi(void) {
    int begun, level;
    MPI_CHECK(MPI_Initialized(&begun));
    if (begun) return;
    MPI_CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level));
    CHECK(level >= MPI_THREAD_SERIALIZED,
          "this MPI does not support MPI_THREAD_SERIALIZED: build isotron with an MPI that does");
    MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK(!atexit(finalize), "cannot register MPI_Finalize with atexit");
}

bool comm_mpi_built(void) { return true; }

Comm *comm_mpi(const CommOptions *options) {
    static const Wire MPI = {.name = "MPI",
                             .say = mpi_say,
                             .hear = mpi_hear,
                             .send = mpi_send,
                             .receive = mpi_receive,
                             .done = mpi_done,
                             .rest = mpi_rest,
                             .lost = mpi_lost,
                             .end = mpi_end,
                             .free = mpi_free};
    int world, rank, found, *tag_limit;
    begin_mpi();
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &world));
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    Mpi *mpi = mem_zero(1, sizeof *mpi);
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control));
    MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->data));
    MPI_CHECK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found));
    listen(mpi);
    /* MPI guarantees that tags up to 32767 are valid */
    return comm_exchange(&MPI, mpi, found ? *tag_limit : 32767, world, rank, options);
}

#endif
