/* Connects the processes in a world to each other. Process 0 listens on the launcher's address, and all others connect
 * to it. After all processes have connected, process 0 sends each process the addresses of all others and this run's
 * secret number. Then every process connects to all lower-numbered processes. All pairs connect in advance, because the
 * first operation (comm_agree) involves all ranks.
 *
 * Any program can connect to a port. A connection (a guest) is accepted only if it sends a hello message from a process
 * in this run. Other connections are closed. All messages have a fixed length. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/version.h"
#include "comm/tcp.h"

#define SECOND INT64_C(1000000000)

enum { LIMIT_S = 600, GUESTS = 64, HELLO_S = 10, RETRY_MS = 50, CONNECT_MS = 5000 };

static const char MAGIC[8] = "isotron";

typedef struct Hello {
    char magic[8], build[120];
    uint64_t run, secret; /* secret is 0 in a hello to process 0, which chooses the secret */
    int32_t world, rank;
    int32_t port;   /* port on which this process listens */
    int32_t failed; /* the ErrCode of a process that has failed and will not participate */
    char failure[400];
} Hello;

/* Process 0's answer to a hello. After WELCOME, process 0 sends the Place of each process. */
typedef struct Answer {
    char magic[8];
    enum { WELCOME, REFUSED, ENDED } what; /* ENDED means that process 0 has reported an error and ends */
    int32_t error;                         /* ENDED: the ErrCode of process 0 */
    char refusal[232];
    uint64_t secret;
} Answer;

typedef struct Place {
    int32_t port, is_v6;
    unsigned char address[16];
} Place;

/* A connection whose hello message is not complete. */
typedef struct Guest {
    int socket;
    size_t have;
    int64_t since;
    Hello hello;
} Guest;

typedef struct Meeting {
    const CommLaunch *launch;
    Hello own;
    int listener, missing; /* missing: number of processes that have not connected to this process */
    int *socket;           /* [world] */
    Place *place;          /* [world] */
    Guest guest[GUESTS];
    int guests;
    Err failure;          /* the failure reported by a connected process */
    const char *obstacle; /* the reason why process 0 could not be reached */
    double limit_s;
    int64_t warning,
        until; /* when to warn and when to stop waiting (clock_ns); `warning` is INT64_MAX after the warning */
} Meeting;

/* ---- sockets ---- */

static Err no_socket(const char *what) { return err_infra("%s: %s", what, strerror(errno)); }

/* Returns true once, after a tenth of the time limit, but never in a process that has failed, because such a process
 * does not wait long. */
static bool warns_now(Meeting *m) {
    if (m->own.failed || clock_ns() < m->warning) return false;
    m->warning = INT64_MAX;
    return true;
}

static int ms_until(int64_t until) {
    const int64_t ms = (until - clock_ns()) / 1000000;
    return ms < 0 ? 0 : ms > 1000 ? 1000 : (int)ms;
}

/* Sends or receives all bytes. Returns false if the connection ends or the time limit expires. */
static bool move_all(int socket, void *bytes, size_t n, bool out, int64_t until) {
    for (size_t at = 0; at < n;) {
        struct pollfd p = {.fd = socket, .events = out ? POLLOUT : POLLIN};
        if (poll(&p, 1, ms_until(until)) <= 0) {
            if (clock_ns() >= until) return false;
            continue;
        }
        const ssize_t got = out ? send(socket, (char *)bytes + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT)
                                : recv(socket, (char *)bytes + at, n - at, MSG_DONTWAIT);
        if (got > 0)
            at += (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return false;
    }
    return true;
}

/* Listens on all of this machine's addresses: IPv6 and IPv4, or only IPv4 if IPv6 is not available. If `port` is 0,
 * chooses a free port. */
static Err listen_at(int port, int *listener) {
    const int one = 1, zero = 0;
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool is_v6 = s >= 0;
    if (!is_v6) s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) return no_socket("no socket can be opened");
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (is_v6) setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    const struct sockaddr *address = is_v6 ? (void *)&v6 : (void *)&v4;
    if (bind(s, address, is_v6 ? sizeof v6 : sizeof v4) || listen(s, SOMAXCONN)) {
        const int reason = errno;
        close(s);
        if (reason == EADDRINUSE)
            return err_user("port %d, on which process 0 listens, is in use: set MASTER_PORT to a free port",
                            port);
        errno = reason;
        return no_socket("process 0 cannot listen on MASTER_PORT");
    }
    *listener = s;
    return ERR_OK;
}

static int port_of(int socket) {
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    getsockname(socket, (void *)&a, &size);
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

/* Returns the address of the connection's other end. An IPv4 address may be mapped to IPv6. */
static Place place_of(int socket, int port) {
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    Place p = {.port = port};
    getpeername(socket, (void *)&a, &size);
    const struct in6_addr *v6 = &((struct sockaddr_in6 *)&a)->sin6_addr;
    p.is_v6 = a.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(v6);
    if (p.is_v6)
        memcpy(p.address, v6, 16);
    else if (a.ss_family == AF_INET6)
        memcpy(p.address, v6->s6_addr + 12, 4);
    else
        memcpy(p.address, &((struct sockaddr_in *)&a)->sin_addr, 4);
    return p;
}

static bool is_loopback(const Place *p) {
    static const unsigned char ONE[16] = {[15] = 1};
    return p->is_v6 ? !memcmp(p->address, ONE, 16) : p->address[0] == 127;
}

/* Returns whether a socket is connected to itself. A socket can connect to itself if no process listens and the port is
 * ephemeral. */
static bool is_own_end(int s) {
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t n = sizeof a, m = sizeof b;
    return !getsockname(s, (void *)&a, &n) && !getpeername(s, (void *)&b, &m) && n == m && !memcmp(&a, &b, n);
}

/* Tries to connect once. Returns -1 and sets errno if the attempt fails. */
static int connect_to(const struct sockaddr *a, socklen_t size) {
    int s = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t n = sizeof error;
    if (s < 0) return -1;
    struct pollfd p = {.fd = s, .events = POLLOUT};
    if (connect(s, a, size) && errno != EINPROGRESS)
        error = errno;
    else if (poll(&p, 1, CONNECT_MS) != 1)
        error = ETIMEDOUT;
    else if (!getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &n) && !error && is_own_end(s))
        error = ECONNREFUSED;
    if (!error) return s;
    close(s);
    errno = error;
    return -1;
}

static int connect_to_place(const Place *p) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)p->port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
    memcpy(&v6.sin6_addr, p->address, 16), memcpy(&v4.sin_addr, p->address, 4);
    return p->is_v6 ? connect_to((void *)&v6, sizeof v6) : connect_to((void *)&v4, sizeof v4);
}

/* ---- guests ---- */

/* Sets `why` to the reason why a process may not join the run, or to an empty string if the process may
 * join. */
static void judge(const Meeting *m, const Hello *h, char *why, size_t size) {
    *why = 0;
    if (strncmp(h->build, m->own.build, sizeof h->build))
        snprintf(why, size,
                 "process 0 runs isotron %.80s, but process %d runs isotron %.80s: use the same build",
                 m->own.build, h->rank, h->build);
    else if (h->world != m->own.world)
        snprintf(why, size,
                 "process 0 expects %d processes, but process %d expects %d: start all with the same number",
                 m->own.world, h->rank, h->world);
    else if (h->run != m->own.run)
        snprintf(why, size, "process 0 belongs to another run: use a different MASTER_PORT for each run");
    else if (h->rank < 0 || h->rank >= m->own.world)
        snprintf(why, size, "process %d of %d cannot exist: give each process a RANK from 0 to %d", h->rank,
                 m->own.world, m->own.world - 1);
    else if (h->rank == 0 || m->socket[h->rank] >= 0)
        snprintf(why, size, "two processes have the number %d: give each process a different RANK", h->rank);
}

static void answer(int socket, Answer a) {
    memcpy(a.magic, MAGIC, sizeof MAGIC);
    move_all(socket, &a, sizeof a, true, clock_ns() + SECOND);
}

/* Returns the error code that another process has sent, or ERR_INFRA if the code is not valid. */
static ErrCode code_of(int32_t code) {
    return code >= ERR_FAILED && code <= ERR_INCONCLUSIVE ? (ErrCode)code : ERR_INFRA;
}

static void take_failure(Meeting *m, const Hello *h) {
    if (m->failure.code) return;
    m->failure = *h->failure
                     ? err_infra("process %d: %s", h->rank, h->failure)
                     : err_infra("process %d ended before all %d processes had met", h->rank, m->own.world);
    m->failure.code = code_of(h->failed);
}

/* Returns whether process 0 admits a guest to the run. If the guest is not admitted, sends the reason to the
 * guest. */
static bool admit_to_run(Meeting *m, Guest *g) {
    Answer no = {.what = ENDED};
    judge(m, &g->hello, no.refusal, sizeof no.refusal);
    if (*no.refusal) {
        no.what = REFUSED;
        if (!m->own.failed) fprintf(stderr, "isotron: a process was refused: %s\n", no.refusal);
    } else if (m->own.failed) {
        m->missing--;
        no.error = m->own.failed;
    } else if (g->hello.failed) {
        take_failure(m, &g->hello);
        no.error = g->hello.failed;
    } else {
        m->place[g->hello.rank] = place_of(g->socket, g->hello.port);
        return true;
    }
    answer(g->socket, no);
    return false;
}

static bool admit(Meeting *m, Guest *g) {
    Hello *h = &g->hello;
    h->build[sizeof h->build - 1] = h->failure[sizeof h->failure - 1] = 0;
    if (memcmp(h->magic, MAGIC, sizeof MAGIC)) return false;
    if (m->own.rank == 0) {
        if (!admit_to_run(m, g)) return false;
    } else if (h->secret != m->own.secret || h->rank <= m->own.rank || h->rank >= m->own.world ||
               m->socket[h->rank] >= 0) {
        return false;
    }
    m->socket[h->rank] = g->socket;
    m->missing--;
    return true;
}

static void remove_guest(Meeting *m, int i, bool close_it) {
    if (close_it) close(m->guest[i].socket);
    m->guest[i] = m->guest[--m->guests];
}

/* Reads the next part of a guest's hello. Returns false if the guest was removed from the list. */
static bool hear_guest(Meeting *m, int i) {
    Guest *g = &m->guest[i];
    const ssize_t got = recv(g->socket, (char *)&g->hello + g->have, sizeof g->hello - g->have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got > 0 && (g->have += (size_t)got) < sizeof g->hello) return true;
    remove_guest(m, i, got <= 0 || !admit(m, g));
    return false;
}

/* Accepts a connection. If the list of guests is full, drops the guest that has been silent longest. */
static void take_guest(Meeting *m) {
    const int s = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s < 0) return;
    if (m->guests == GUESTS) {
        int oldest = 0;
        for (int i = 1; i < GUESTS; i++)
            if (m->guest[i].since < m->guest[oldest].since) oldest = i;
        remove_guest(m, oldest, true);
    }
    m->guest[m->guests++] = (Guest){.socket = s, .since = clock_ns()};
}

/* Returns an error that names the processes that have not connected, such as "2, 5". */
static Err not_all_came(const Meeting *m, double waited_s) {
    enum { SHOWN = 16 };
    Str who = {0};
    for (int r = m->own.rank + 1, n = 0; r < m->own.world; r++)
        if (m->socket[r] < 0 && n++ <= SHOWN) str_printf(&who, n > SHOWN ? " ..." : n > 1 ? ", %d" : "%d", r);
    const Err e = err_infra(
        "process %d waited %g s at port %d for process %s of %d: check that all processes were "
        "started with the same MASTER_ADDR and MASTER_PORT, and that no firewall blocks the connection",
        m->own.rank, waited_s, m->own.rank ? m->own.port : m->launch->port, who.s, m->own.world);
    str_free(&who);
    return e;
}

/* Returns the index of a process that has already ended, or -1 if there is none. */
static int who_left(const Meeting *m, struct pollfd *p) {
    int n = 0;
    for (int r = 0; r < m->own.world; r++)
        if (m->socket[r] >= 0) p[n++] = (struct pollfd){.fd = m->socket[r], .events = POLLRDHUP};
    if (poll(p, (nfds_t)n, 0) <= 0) return -1;
    n = 0;
    for (int r = 0; r < m->own.world; r++)
        if (m->socket[r] >= 0 && p[n++].revents) return r;
    return -1;
}

/* Accepts all missing processes. */
static Err receive_guests(Meeting *m) {
    struct pollfd *p = mem_zero((size_t)m->own.world + GUESTS + 1, sizeof *p);
    Err e = ERR_OK;
    while (m->missing && !e.code) {
        const int n = m->guests, left = who_left(m, p);
        p[0] = (struct pollfd){.fd = m->listener, .events = POLLIN};
        for (int i = 0; i < n; i++) p[i + 1] = (struct pollfd){.fd = m->guest[i].socket, .events = POLLIN};
        poll(p, (nfds_t)n + 1, RETRY_MS);
        for (int i = n; i-- > 0;) {
            if (p[i + 1].revents && !hear_guest(m, i)) continue;
            if (clock_ns() - m->guest[i].since > HELLO_S * SECOND) remove_guest(m, i, true);
        }
        if (p[0].revents) take_guest(m);
        if (m->failure.code)
            e = m->failure;
        else if (left >= 0)
            e = err_infra("process %d ended before all %d processes had met: see its messages", left,
                          m->own.world);
        else if (m->missing && clock_ns() >= m->until)
            e = not_all_came(m, m->limit_s);
        else if (m->missing && warns_now(m))
            fprintf(stderr, "COMM WARNING %s\n", not_all_came(m, m->limit_s / 10).msg);
    }
    while (m->guests) remove_guest(m, 0, true);
    free(p);
    return e;
}

/* ---- process 0 ---- */

static Err host_meeting(Meeting *m) {
    Answer yes = {.what = WELCOME};
    m->missing = m->own.world - 1;
    const Err e = receive_guests(m);
    for (int r = 1; r < m->own.world && e.code; r++)
        if (m->socket[r] >= 0) answer(m->socket[r], (Answer){.what = ENDED, .error = (int32_t)e.code});
    if (e.code) return e;
    memcpy(yes.magic, MAGIC, sizeof MAGIC);
    if (getrandom(&yes.secret, sizeof yes.secret, 0) != sizeof yes.secret)
        return no_socket("cannot get a random number");
    for (int r = 1; r < m->own.world; r++)
        if (!move_all(m->socket[r], &yes, sizeof yes, true, m->until) ||
            !move_all(m->socket[r], m->place, (size_t)m->own.world * sizeof *m->place, true, m->until))
            return err_infra("process %d ended before all %d processes had met: see its messages", r,
                             m->own.world);
    return ERR_OK;
}

/* ---- the other processes ---- */

static int try_host(Meeting *m) {
    const CommLaunch *l = m->launch;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all = NULL;
    char port[16];
    int s = -1;
    snprintf(port, sizeof port, "%d", l->port);
    const int unknown = getaddrinfo(l->host, port, &hints, &all);
    if (unknown) {
        m->obstacle = gai_strerror(unknown);
        return -1;
    }
    for (const struct addrinfo *a = all; a && s < 0; a = a->ai_next)
        s = connect_to(a->ai_addr, a->ai_addrlen);
    m->obstacle = s < 0 ? strerror(errno) : NULL;
    freeaddrinfo(all);
    return s;
}

static Err not_reached(const Meeting *m, double tried_s) {
    return err_infra("process %d tried for %g s to reach process 0 at %s, port %d (%s): check that process 0 "
                     "was started, and that MASTER_ADDR and MASTER_PORT are correct",
                     m->own.rank, tried_s, m->launch->host, m->launch->port, m->obstacle);
}

/* Connects to process 0, which may start later than this process. */
static Err find_host(Meeting *m) {
    for (;;) {
        if ((m->socket[0] = try_host(m)) >= 0) return ERR_OK;
        if (clock_ns() >= m->until) return not_reached(m, m->limit_s);
        if (warns_now(m)) fprintf(stderr, "COMM WARNING %s\n", not_reached(m, m->limit_s / 10).msg);
        nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL);
    }
}

static bool ask_host(Meeting *m, Answer *a) {
    return move_all(m->socket[0], &m->own, sizeof m->own, true, m->until) &&
           move_all(m->socket[0], a, sizeof *a, false, m->until + HELLO_S * SECOND);
}

/* Connects to process 0 again, because process 0 drops a slow process's connection while many others connect
 * (take_guest). */
static bool connects_again(Meeting *m) {
    if (m->socket[0] >= 0) close(m->socket[0]);
    nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL);
    return (m->socket[0] = try_host(m)) >= 0;
}

static Err hear_host(Meeting *m) {
    /* limited, because process 0 may have ended, and another program may accept and close every connection */
    enum { TRIES = 20 };
    Answer a;
    const CommLaunch *l = m->launch;
    bool answered = ask_host(m, &a);
    for (int i = 1; i < TRIES && !answered && clock_ns() < m->until; i++)
        answered = connects_again(m) && ask_host(m, &a);
    if (!answered)
        return err_infra("process 0 at %s, port %d, ended or was silent for %g s before all %d processes had "
                         "met: see its messages",
                         l->host, l->port, m->limit_s, l->processes);
    a.refusal[sizeof a.refusal - 1] = 0;
    if (memcmp(a.magic, MAGIC, sizeof MAGIC))
        return err_user("another program listens on %s, port %d: set MASTER_PORT to a free port", l->host,
                        l->port);
    if (a.what == REFUSED) return err_user("this process may not join the run: %s", a.refusal);
    if (a.what != WELCOME) return (Err){.code = code_of(a.error)}; /* process 0 has printed the reason */
    m->own.secret = a.secret;
    if (!move_all(m->socket[0], m->place, (size_t)l->processes * sizeof *m->place, false,
                  m->until + HELLO_S * SECOND))
        return err_infra(
            "process 0 at %s, port %d, ended while the processes were connecting: see its messages", l->host,
            l->port);
    return ERR_OK;
}

/* Connects to a process. If process 0 knows the process by a loopback address, the process runs on process 0's host. */
static Err visit(Meeting *m, int rank) {
    const Place host = place_of(m->socket[0], 0);
    Place to = m->place[rank];
    if (is_loopback(&to)) to = host, to.port = m->place[rank].port;
    for (;;) {
        if ((m->socket[rank] = connect_to_place(&to)) >= 0 &&
            move_all(m->socket[rank], &m->own, sizeof m->own, true, m->until))
            return ERR_OK;
        if (m->socket[rank] >= 0) close(m->socket[rank]);
        m->socket[rank] = -1;
        if (clock_ns() >= m->until)
            return err_infra("process %d cannot connect to process %d at port %d: check that both run, and "
                             "that no firewall blocks the connection",
                             m->own.rank, rank, to.port);
        nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL);
    }
}

static Err attend_meeting(Meeting *m) {
    ERR_RETURN(find_host(m));
    ERR_RETURN(hear_host(m));
    for (int r = 1; r < m->own.rank; r++) ERR_RETURN(visit(m, r));
    m->missing = m->own.world - 1 - m->own.rank;
    return receive_guests(m);
}

/* ---- */

/* Raises the limit on open files, because a process needs one descriptor per connection. */
static void raise_limit(int connections) {
    enum { OTHER_FILES = 256 };
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= (rlim_t)connections + OTHER_FILES) return;
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
}

static Meeting *meeting_new(const CommLaunch *l, const CommOptions *o, int *socket) {
    const double limit_s = o->meet_s > 0 ? o->meet_s : LIMIT_S;
    Meeting *m = mem_zero(1, sizeof *m);
    *m = (Meeting){.launch = l, .listener = -1, .socket = socket, .limit_s = limit_s};
    m->warning = clock_ns() + (int64_t)(limit_s * 1e8);
    m->until = clock_ns() + (int64_t)(limit_s * 1e9);
    m->own = (Hello){.world = l->processes, .rank = l->process, .run = hash64(l->run, strlen(l->run), 0)};
    memcpy(m->own.magic, MAGIC, sizeof MAGIC);
    snprintf(m->own.build, sizeof m->own.build, "%s %s", isotron_version(), o->build ? o->build : "");
    m->place = mem_zero((size_t)l->processes, sizeof *m->place);
    for (int r = 0; r < l->processes; r++) socket[r] = -1;
    return m;
}

static void meeting_free(Meeting *m, bool close_all) {
    for (int r = 0; r < m->own.world && close_all; r++)
        if (m->socket[r] >= 0) close(m->socket[r]), m->socket[r] = -1;
    if (m->listener >= 0) close(m->listener);
    free(m->place), free(m);
}

Err tcp_meet(const CommLaunch *l, const CommOptions *o, int *socket) {
    const int one = 1;
    Meeting *m = meeting_new(l, o, socket);
    raise_limit(l->processes);
    Err e = listen_at(l->process ? 0 : l->port, &m->listener);
    if (!e.code) {
        m->own.port = port_of(m->listener);
        e = l->process ? attend_meeting(m) : host_meeting(m);
    }
    meeting_free(m, e.code != ERR_NONE);
    for (int r = 0; r < l->processes; r++)
        if (socket[r] >= 0) setsockopt(socket[r], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return e;
}

bool comm_tcp_give_up(const CommLaunch *l, const CommOptions *o, Err *error) {
    Answer a = {.what = REFUSED};
    int *socket = mem_zero((size_t)l->processes, sizeof *socket);
    Meeting *m = meeting_new(l, o, socket);
    m->own.failed = (int32_t)error->code, m->missing = l->processes - 1;
    snprintf(m->own.failure, sizeof m->own.failure, "%s", error->msg);
    if (l->process == 0) {
        if (!listen_at(l->port, &m->listener).code) receive_guests(m);
    } else if (!find_host(m).code && move_all(m->socket[0], &m->own, sizeof m->own, true, m->until)) {
        move_all(m->socket[0], &a, sizeof a, false, m->until);
    }
    meeting_free(m, true);
    free(socket);
    const bool ended = !memcmp(a.magic, MAGIC, sizeof MAGIC) && a.what == ENDED;
    if (ended) error->code = code_of(a.error);
    return l->process == 0 || ended;
}
