/* A wire (exchange.h) that uses TCP. Each pair of processes has a connection, which transfers frames. A frame consists
 * of a header and its data. Small data are sent immediately; a receiver that does not expect them yet stores them.
 * Large data are sent only after the receiver has announced that it expects them, and are received directly into their
 * destination, so processes do not store large amounts of unexpected data. */
#include "comm/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "comm/exchange.h"

enum {
    SMALL = 64 << 10,   /* maximum size in bytes of data that are sent immediately */
    BUFFER = 128 << 10, /* maximum number of bytes per read */
    TURN = 4 << 20,     /* number of bytes to read from one process before reading from the next */
};

typedef enum FrameKind { FRAME_SAY = 1, FRAME_DATA, FRAME_EXPECTS } FrameKind;

typedef struct Frame {
    int32_t kind, tag;
    int64_t bytes; /* number of bytes after the header; 0 for FRAME_EXPECTS */
} Frame;

struct WireMessage {
    Frame head;
    char *at;
    size_t moved; /* number of bytes sent so far (header and data), or received so far (data) */
    bool done;
    /* whether the wire allocated the message and frees it when complete; `at` then points directly after the
     * structure */
    bool own;
    struct WireMessage *next;
};

typedef struct List {
    WireMessage *first;
} List;

typedef struct Peer {
    int socket; /* -1 for this process, or if the connection has ended */
    const char *lost;
    bool lost_is_known; /* whether the loss has been announced */
    bool wants_room;    /* whether epoll reports that the socket is writable */
    List out;           /* frames to send */
    List held;          /* frames whose large data the receiver does not expect yet */
    List expected;      /* messages whose data have not arrived */
    /* data that arrived before they were expected, and expectations whose data have not been sent */
    List early;
    WireMessage *coming; /* the data of the current frame */
    char *buffer;        /* [BUFFER] */
    size_t begin, end;   /* unread bytes: buffer[begin, end) */
    int64_t heard_ns;
} Peer;

typedef struct Said { /* a received announcement */
    Announcement a;
    int from;
    struct Said *next;
} Said;

typedef struct Tcp {
    int world, rank, epoll;
    Peer *peer; /* [world] */
    Said *inbox, **inbox_end;
} Tcp;

/* ---- lists ---- */

static void append(List *l, WireMessage *m) {
    WireMessage **at = &l->first;
    while (*at) at = &(*at)->next;
    m->next = NULL;
    *at = m;
}

/* Removes the first message of this kind and tag from a list and returns it, or NULL if there is none. */
static WireMessage *take_out(List *l, FrameKind kind, int32_t tag) {
    for (WireMessage **at = &l->first, *m; (m = *at); at = &m->next)
        if (m->head.kind == (int32_t)kind && m->head.tag == tag) {
            *at = m->next;
            return m;
        }
    return NULL;
}

static void free_list(List *l) {
    for (WireMessage *m; (m = l->first);) l->first = m->next, free(m);
}

/* Returns a message that the wire owns and that has space for its data. */
static WireMessage *own_message(FrameKind kind, int32_t tag, int64_t bytes) {
    WireMessage *m = mem_alloc(sizeof *m + (size_t)bytes);
    *m = (WireMessage){.head = {(int32_t)kind, tag, bytes}, .at = (char *)(m + 1), .own = true};
    return m;
}

static void finish(WireMessage *m) {
    m->done = true;
    if (m->own) free(m);
}

/* ---- the end of a connection ---- */

static void lose(Tcp *t, int rank, const char *why) {
    Peer *p = &t->peer[rank];
    if (p->lost) return;
    epoll_ctl(t->epoll, EPOLL_CTL_DEL, p->socket, NULL);
    close(p->socket);
    p->socket = -1;
    p->lost = why;
}

static void deliver(Tcp *t, const Announcement *a, int from) {
    Said *s = mem_alloc(sizeof *s);
    *s = (Said){.a = *a, .from = from};
    *t->inbox_end = s;
    t->inbox_end = &s->next;
}

/* ---- sending ---- */

static void want_room(const Tcp *t, int rank, bool want) {
    Peer *p = &t->peer[rank];
    if (p->wants_room == want || p->lost) return;
    struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.u32 = (uint32_t)rank};
    epoll_ctl(t->epoll, EPOLL_CTL_MOD, p->socket, &e);
    p->wants_room = want;
}

/* Sends data until the socket can accept no more. */
static void flush_to(Tcp *t, int rank) {
    Peer *p = &t->peer[rank];
    for (WireMessage *m; (m = p->out.first) && !p->lost;) {
        const size_t head = sizeof m->head, all = head + (size_t)m->head.bytes;
        const size_t data = m->moved > head ? m->moved - head : 0;
        struct iovec part[2] = {{(char *)&m->head + m->moved, head - m->moved},
                                {m->at + data, (size_t)m->head.bytes - data}};
        const int skip = m->moved >= head;
        struct msghdr h = {.msg_iov = part + skip, .msg_iovlen = (size_t)(2 - skip)};
        const ssize_t sent = sendmsg(p->socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) break; /* the socket is full, or has an error that a later read reports */
        if ((m->moved += (size_t)sent) < all) continue;
        p->out.first = m->next;
        finish(m);
    }
    want_room(t, rank, p->out.first != NULL);
}

static void send_frame(Tcp *t, int rank, WireMessage *m) {
    Peer *p = &t->peer[rank];
    const bool idle = !p->out.first;
    append(&p->out, m);
    if (idle) flush_to(t, rank);
}

static void tcp_say(void *wire, const Announcement *a, int to) {
    Tcp *t = wire;
    WireMessage *m = own_message(FRAME_SAY, 0, sizeof *a);
    memcpy(m->at, a, sizeof *a);
    send_frame(t, to, m);
}

static WireMessage *tcp_send(void *wire, int to, int tag, const void *from, int64_t bytes) {
    Tcp *t = wire;
    Peer *p = &t->peer[to];
    WireMessage *m = mem_alloc(sizeof *m), *asked = NULL;
    *m = (WireMessage){.head = {FRAME_DATA, tag, bytes}, .at = (char *)(uintptr_t)from};
    if (bytes > SMALL && !(asked = take_out(&p->early, FRAME_EXPECTS, tag)))
        append(&p->held, m);
    else
        send_frame(t, to, m);
    free(asked);
    return m;
}

/* ---- receiving ---- */

/* Copies data that arrived early to the message that expects them. */
static void hand_over(WireMessage *early, WireMessage *m, int from) {
    CHECK(early->head.bytes == m->head.bytes, "rank %d sent %lld bytes, but %lld were expected", from,
          (long long)early->head.bytes, (long long)m->head.bytes);
    memcpy(m->at, early->at, (size_t)m->head.bytes);
    m->done = true;
    free(early);
}

static WireMessage *tcp_receive(void *wire, int from, int tag, void *to, int64_t bytes) {
    Tcp *t = wire;
    Peer *p = &t->peer[from];
    WireMessage *m = mem_alloc(sizeof *m), *early = take_out(&p->early, FRAME_DATA, tag);
    *m = (WireMessage){.head = {FRAME_DATA, tag, bytes}, .at = to};
    if (early)
        hand_over(early, m, from);
    else
        append(&p->expected, m);
    if (bytes > SMALL) send_frame(t, from, own_message(FRAME_EXPECTS, tag, 0));
    return m;
}

static bool tcp_done(void *wire, WireMessage *m) {
    (void)wire;
    const bool done = m->done;
    if (done) free(m);
    return done;
}

/* Handles a frame's header. Returns false if the header is not valid. */
static bool begin_frame(Tcp *t, int rank, const Frame *f) {
    Peer *p = &t->peer[rank];
    WireMessage *m;
    if (f->kind == FRAME_EXPECTS && f->bytes == 0) {
        m = take_out(&p->held, FRAME_DATA, f->tag);
        if (m)
            send_frame(t, rank, m);
        else
            append(&p->early, own_message(FRAME_EXPECTS, f->tag, 0));
        return true;
    }
    if (f->kind == FRAME_SAY && f->bytes == sizeof(Announcement)) {
        p->coming = own_message(FRAME_SAY, 0, f->bytes);
        return true;
    }
    if (f->kind != FRAME_DATA || f->bytes <= 0) return false;
    m = take_out(&p->expected, FRAME_DATA, f->tag);
    if (m ? m->head.bytes != f->bytes : f->bytes > SMALL) return false;
    p->coming = m ? m : own_message(FRAME_DATA, f->tag, f->bytes);
    return true;
}

/* Handles a frame that has arrived completely. If the frame's data are small, this rank may have begun to expect
 * them in the meantime. */
static void end_frame(Tcp *t, int rank) {
    Peer *p = &t->peer[rank];
    WireMessage *m = p->coming, *expected = NULL;
    p->coming = NULL;
    if (m->head.kind == FRAME_SAY) deliver(t, (const Announcement *)(const void *)m->at, rank);
    if (m->head.kind == FRAME_SAY || !m->own)
        finish(m);
    else if ((expected = take_out(&p->expected, FRAME_DATA, m->head.tag)))
        hand_over(m, expected, rank);
    else
        append(&p->early, m);
}

static void read_buffer(Tcp *t, int rank) {
    Peer *p = &t->peer[rank];
    while (!p->lost) {
        const size_t have = p->end - p->begin;
        if (!p->coming) {
            Frame f;
            if (have < sizeof f) return;
            memcpy(&f, p->buffer + p->begin, sizeof f);
            p->begin += sizeof f;
            if (!begin_frame(t, rank, &f)) lose(t, rank, "it sent data that is not valid for this program");
            continue;
        }
        WireMessage *m = p->coming;
        const size_t left = (size_t)m->head.bytes - m->moved, n = have < left ? have : left;
        memcpy(m->at + m->moved, p->buffer + p->begin, n);
        p->begin += n, m->moved += n;
        if (m->moved < (size_t)m->head.bytes) return;
        end_frame(t, rank);
    }
}

/* Returns the number of bytes read, or 0 if none have arrived. Large data are received directly into their
 * destination. */
static size_t read_some(Tcp *t, int rank) {
    Peer *p = &t->peer[rank];
    WireMessage *m = p->coming;
    /* large data; the buffer is then empty */
    const bool straight = m && (size_t)m->head.bytes - m->moved > BUFFER;
    if (!straight && p->begin) {
        memmove(p->buffer, p->buffer + p->begin, p->end - p->begin);
        p->end -= p->begin, p->begin = 0;
    }
    const ssize_t got =
        straight ? recv(p->socket, m->at + m->moved, (size_t)m->head.bytes - m->moved, MSG_DONTWAIT)
                 : recv(p->socket, p->buffer + p->end, BUFFER - p->end, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (got <= 0) {
        const bool closed = got == 0 || errno == ECONNRESET || errno == EPIPE;
        lose(t, rank, closed ? "its connection is closed" : "its connection has failed");
        return 0;
    }
    p->heard_ns = clock_ns();
    *(straight ? &m->moved : &p->end) += (size_t)got;
    return (size_t)got;
}

static void read_from(Tcp *t, int rank) {
    Peer *p = &t->peer[rank];
    for (size_t got = 1, turn = 0; got && turn < TURN && !p->lost; turn += got) {
        got = read_some(t, rank);
        if (got) read_buffer(t, rank);
    }
    if (!p->lost || p->lost_is_known) return;
    p->lost_is_known = true;
    deliver(t, &(Announcement){.what = LOST}, rank);
}

/* Sends and receives without blocking. */
static void pump(Tcp *t) {
    enum { EVENTS = 64 };
    struct epoll_event e[EVENTS];
    const int n = epoll_wait(t->epoll, e, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        const int rank = (int)e[i].data.u32;
        if (e[i].events & EPOLLOUT) flush_to(t, rank);
        if (e[i].events & ~(uint32_t)EPOLLOUT) read_from(t, rank);
    }
}

static bool tcp_hear(void *wire, Announcement *a, int *from) {
    Tcp *t = wire;
    if (!t->inbox) pump(t);
    Said *s = t->inbox;
    if (!s) return false;
    *a = s->a, *from = s->from;
    t->inbox = s->next;
    if (!t->inbox) t->inbox_end = &t->inbox;
    free(s);
    return true;
}

/* ---- the world ---- */

/* Waits for messages. The wait is short, because the second thread may read the awaited message meanwhile. */
static void tcp_rest(void *wire, int tries) {
    enum { LONGEST_MS = 10 };
    const Tcp *t = wire;
    struct epoll_event e;
    epoll_wait(t->epoll, &e, 1, tries < LONGEST_MS ? tries : LONGEST_MS);
}

static int64_t tcp_heard(void *wire, int rank) {
    const Tcp *t = wire;
    return t->peer[rank].heard_ns;
}

static const char *tcp_lost(void *wire, int rank) {
    const Tcp *t = wire;
    return t->peer[rank].lost;
}

/* Sends the remaining data, and reads until the other processes have closed their ends. If this end closed earlier,
 * data that arrive later would reset the connection, and undelivered data would be lost. */
static void close_all(Tcp *t, int64_t patience_ns) {
    const int64_t until = clock_ns() + patience_ns;
    bool *shut = mem_zero((size_t)t->world, sizeof *shut);
    for (int open = 1; open && clock_ns() < until;) {
        open = 0;
        for (int r = 0; r < t->world; r++) {
            const Peer *p = &t->peer[r];
            if (p->socket < 0) continue;
            open++;
            if (p->out.first || shut[r]) continue;
            shutdown(p->socket, SHUT_WR);
            shut[r] = true;
        }
        pump(t);
        tcp_rest(t, 1);
    }
    free(shut);
}

static _Noreturn void tcp_end(void *wire) {
    Tcp *t = wire;
    for (int r = 0; r < t->world; r++)
        if (t->peer[r].socket >= 0) tcp_say(t, &(Announcement){.what = ENDS}, r);
    close_all(t, INT64_C(500000000));
    _exit(ERR_INFRA);
}

static void tcp_free(void *wire) {
    Tcp *t = wire;
    close_all(t, INT64_C(5000000000));
    for (int r = 0; r < t->world; r++) {
        Peer *p = &t->peer[r];
        if (p->socket >= 0) close(p->socket);
        free_list(&p->out), free_list(&p->held), free_list(&p->expected), free_list(&p->early);
        free(p->coming), free(p->buffer);
    }
    for (Said *s; (s = t->inbox);) t->inbox = s->next, free(s);
    close(t->epoll);
    free(t->peer), free(t);
}

Err comm_tcp(const CommLaunch *l, const CommOptions *o, Comm **out) {
    static const Wire TCP = {.name = "TCP",
                             .say = tcp_say,
                             .hear = tcp_hear,
                             .send = tcp_send,
                             .receive = tcp_receive,
                             .done = tcp_done,
                             .rest = tcp_rest,
                             .heard = tcp_heard,
                             .lost = tcp_lost,
                             .end = tcp_end,
                             .free = tcp_free};
    int *socket = mem_zero((size_t)l->processes, sizeof *socket);
    *out = NULL;
    const Err e = tcp_meet(l, o, socket);
    if (e.code) {
        free(socket);
        return e;
    }
    Tcp *t = mem_zero(1, sizeof *t);
    *t = (Tcp){.world = l->processes, .rank = l->process, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    CHECK(t->epoll >= 0, "cannot create an epoll instance");
    t->inbox_end = &t->inbox;
    t->peer = mem_zero((size_t)t->world, sizeof *t->peer);
    for (int r = 0; r < t->world; r++) {
        Peer *p = &t->peer[r];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)r};
        p->socket = socket[r];
        if (r == t->rank) continue;
        p->buffer = mem_alloc(BUFFER);
        CHECK(!epoll_ctl(t->epoll, EPOLL_CTL_ADD, p->socket, &event),
              "cannot add the connection to rank %d to epoll", r);
    }
    free(socket);
    *out = comm_exchange(&TCP, t, INT32_MAX - 1, t->world, t->rank, o);
    return ERR_OK;
}
