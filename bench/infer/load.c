#include "bench/infer/load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

/* A connection, and the part of an answer that has been received but not yet processed. */
typedef struct Client {
    int fd;
    LoadRequest *at, *end; /* the client's current request, and the end of its requests */
    Str received, events;  /* events: the body, decoded from its chunks */
    bool in_body, ended;   /* ended: if true, the last event has arrived */
} Client;

Str load_post(const char *path, const Str *body) {
    Str text = {0};
    str_printf(&text,
               "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
               "Content-Length: %zu\r\n\r\n",
               path, body->len);
    str_add(&text, body->s, body->len);
    return text;
}

static Err lost(const char *what) {
    return err_infra("a client cannot %s the server: %s", what, strerror(errno));
}

static void drop(Str *s, size_t n) {
    memmove(s->s, s->s + n, s->len - n + 1);
    s->len -= n;
}

static void hang_up(Client *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

/* Returns the position after the first occurrence of `end`, or NULL. */
static char *after(const Str *s, const char *end) {
    char *at = s->len ? memmem(s->s, s->len, end, strlen(end)) : NULL;
    return at ? at + strlen(end) : NULL;
}

static Err send_request(Client *c) {
    const Str *text = &c->at->text;
    c->at->sent = clock_ns();
    for (size_t n = 0; n < text->len;) {
        const ssize_t sent = send(c->fd, text->s + n, text->len - n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) return lost("send to");
        if (sent > 0) n += (size_t)sent;
    }
    return ERR_OK;
}

/* ---- answers ---- */

/* Counts the tokens that an event reports. The event arrived at time `now`. */
static Err take_event(Load *l, Client *c, const char *event, int64_t now) {
    /* a quote in generated text would be escaped, so this match is a key */
    static const char COUNT[] = "\"completion_tokens\":";
    LoadRequest *r = c->at;
    const char *count = strstr(event, COUNT);
    const int64_t tokens = count ? strtoll(count + strlen(COUNT), NULL, 10) : r->tokens;
    c->ended = !strcmp(event, "data: [DONE]");
    if (tokens > l->tokens || (c->ended && tokens < l->tokens))
        return err_infra("the server has sent %lld tokens instead of %lld: %s", (long long)tokens,
                         (long long)l->tokens, quote(event).s);
    for (; r->tokens < tokens; r->tokens++, r->last = now) {
        if (r->tokens)
            l->gaps[l->n_gaps++] = (double)(now - r->last);
        else
            r->first = now;
    }
    return ERR_OK;
}

static Err take_events(Load *l, Client *c, int64_t now) {
    static const char END[] = "\n\n";
    for (char *end; (end = after(&c->events, END)); drop(&c->events, (size_t)(end - c->events.s))) {
        end[-(ptrdiff_t)strlen(END)] = 0;
        ERR_RETURN(take_event(l, c, c->events.s, now));
    }
    return ERR_OK;
}

/* Moves the next chunk of the body to `events`. Returns whether the chunk has arrived. Sets *last if the body
 * ends. */
static bool take_chunk(Client *c, bool *last) {
    char *content = after(&c->received, "\r\n");
    const size_t size = content ? strtoull(c->received.s, NULL, 16) : 0,
                 head = content ? (size_t)(content - c->received.s) : 0;
    if (!content || c->received.len < head + size + strlen("\r\n")) return false;
    str_add(&c->events, content, size);
    drop(&c->received, head + size + strlen("\r\n"));
    *last = !size;
    return true;
}

static Err begin_body(Client *c) {
    static const char OK[] = "HTTP/1.1 200 ", CHUNKED[] = "Transfer-Encoding: chunked";
    const char *body = after(&c->received, "\r\n\r\n");
    if (!body) return ERR_OK;
    if (strncmp(c->received.s, OK, strlen(OK)) || !after(&c->received, CHUNKED))
        return err_infra("the server has refused a request: %.700s", c->received.s);
    drop(&c->received, (size_t)(body - c->received.s));
    c->in_body = true;
    return ERR_OK;
}

/* Processes the received bytes. Sets *ended if the answer has ended. */
static Err take_answer(Load *l, Client *c, int64_t now, bool *ended) {
    if (!c->in_body) ERR_RETURN(begin_body(c));
    while (c->in_body && !*ended && take_chunk(c, ended)) ERR_RETURN(take_events(l, c, now));
    if (*ended && !c->ended) return err_infra("the server has ended a stream before its last event");
    return ERR_OK;
}

/* Reads from a connection. After an answer, sends the client's next request. After its last answer, closes the
 * connection and decrements *open. */
static Err serve_client(Load *l, Client *c, int64_t *open) {
    char bytes[16 << 10];
    bool ended = false;
    const ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    const int64_t now = clock_ns();
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return ERR_OK;
    if (n < 0) return lost("receive from");
    if (!n) return err_infra("the server has closed a connection before the end of an answer");
    str_add(&c->received, bytes, (size_t)n);
    ERR_RETURN(take_answer(l, c, now, &ended));
    if (!ended) return ERR_OK;
    c->in_body = c->ended = false;
    if (++c->at < c->end) return send_request(c);
    hang_up(c);
    --*open;
    return ERR_OK;
}

/* ---- clients ---- */

static Err connect_clients(const Load *l, Client *clients, int epoll) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)l->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int64_t i = 0; i < l->clients; i++) {
        Client *c = &clients[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        c->at = l->requests + i * l->each, c->end = c->at + l->each;
        if ((c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
            connect(c->fd, (const struct sockaddr *)&to, sizeof to) ||
            setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) ||
            epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event))
            return lost("connect to");
    }
    return ERR_OK;
}

static Err run_clients(Load *l, Client *clients, int epoll) {
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    int64_t open = l->clients;
    ERR_RETURN(connect_clients(l, clients, epoll));
    l->start = clock_ns(), l->n_gaps = 0;
    for (int64_t i = 0; i < l->clients; i++) ERR_RETURN(send_request(&clients[i]));
    while (open) {
        const int n = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++) ERR_RETURN(serve_client(l, events[i].data.ptr, &open));
    }
    return ERR_OK;
}

Err load_run(Load *l) {
    Client *clients = mem_zero((size_t)l->clients, sizeof *clients);
    for (int64_t i = 0; i < l->clients; i++) clients[i].fd = -1;
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const Err e = epoll < 0 ? lost("wait for") : run_clients(l, clients, epoll);
    for (Client *c = clients; c < clients + l->clients; c++) {
        hang_up(c);
        str_free(&c->received), str_free(&c->events);
    }
    if (epoll >= 0) close(epoll);
    free(clients);
    return e;
}
