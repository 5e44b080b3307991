/* The messages between the ranks of a fleet (fleet.h). A message consists of 64-bit words: a header, which begins
 * with the protocol version and contains the body's length, and a body. */
#pragma once

#include "infer/fleet_state.h"

enum {
    FLEET_PROTOCOL = 3,
    FLEET_HEAD = 4,                             /* number of words in the header of a message with orders */
    FLEET_REPLY = 3 + sizeof(EngineCounts) / 8, /* number of words in the header of a reply */
    FLEET_MOST_WORDS = INT32_MAX,               /* maximum number of words in a body */
};

/* The words of a body. A writer appends words, and a reader continues at `read`. */
typedef struct Words {
    int64_t *at; /* [n], owned */
    int64_t n, read;
    bool reads, bad; /* bad: whether the reader has found an invalid word */
} Words;

typedef enum OrderKind { ORDER_ADD, ORDER_ABORT, ORDER_SIGNAL, ORDERS } OrderKind;

/* Rank 0 sends orders, which all ranks apply before the next pass. */
typedef struct Order {
    OrderKind kind;
    int64_t number;  /* orders are numbered consecutively, starting when the fleet is created */
    int64_t replica; /* only for ORDER_ADD and ORDER_ABORT */
    Request request; /* for ORDER_ABORT, only the id is used */
    FleetSignal signal;
    const char *path; /* [n_path] for SIGNAL_WEIGHTS */
    int64_t n_path;
} Order;

/* Appends an order. */
void order_write(Words *, const Order *);
/* Reads the next order. The order's path and its request's arrays point into the words. */
void order_read(Words *, Order *);
/* Append and read an engine event. */
void event_write(Words *, const EngineEvent *);
void event_read(Words *, EngineEvent *);

/* Checks the header of a message from a rank. The header's last word is the body's length in words. */
Err head_check(const int64_t *head, int words, int rank);
