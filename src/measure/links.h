/* Predicts the time of a collective of any size and group from measured times, and from descriptions of links that were
 * not measured. `bench rates` and `bench comm` write measured times; `plan` reads them.
 *
 * A measured time belongs to a kind, a number of members, the number of members per host, and the size of a rank's
 * larger buffer, as in `bench comm`. If a group with these numbers was measured, its time is interpolated linearly
 * between sizes. Above the largest size, bytes/s are constant. Below the smallest size b, the time is
 *
 *     t(x) = a + (t(b) - a) x / b
 *
 * The latency a is t(b) if b is at most 64 KiB, otherwise the latency of the description, or 0 without a description.
 *
 * For another number of members n, let m be the next smaller number that was measured, on one host or, across hosts,
 * with the same number of members per host. If there is none, m is the next larger number. Then
 *
 *     t(x, n) = a l(n) / l(m) + (t(x, m) - a) f(n) / f(m)
 *
 * Here f is busbw / algbw (measure/exact.h), for example (n-1)/n. For an all-to-all across hosts it is the fraction of
 * bytes that leave a host. The latency grows with the members, l(n) = n-1, but does not shrink: l(n) = l(m) if n < m.
 *
 * All other times follow from the description. With r members on each of h hosts, a member's share of the host's NICs
 * has the bandwidth N = nic * nics / ranks of a host. V is the bandwidth of NVLink. Then
 *
 *     one host        f x / V
 *     across hosts    f x / min(r N, V), because a ring leaves each host through the NICs of all its members
 *     all-to-all      max((n-r)/n x / N, v x / V), where v counts the bytes to members of the host, and the bytes that
 *                     leave on a different rail: v = (r-1)/n + (n-r)/n (rails-1)/rails
 *     messages        x / V on one host, x / min(N, V) across hosts
 *
 * plus the latency of the steps. An all-gather, reduce-scatter, all-to-all or broadcast is a ring with h-1 steps between
 * hosts and n-h steps in hosts. An all-reduce adds along a ring in each host and a binary tree of hosts, and then
 * returns the sum: 2 (r-1) steps in hosts and 2 log2 h steps between them, rounded up. A message has one step.
 *
 * A prediction never increases if bytes or a measured time decrease, or if a described bandwidth increases. */
#pragma once

#include <jansson.h>

#include "base/err.h"
#include "comm/comm.h"

enum { LINKS_MOST = 1 << 20, LINK_KINDS = COMM_KINDS + 2 };

/* A copy between pinned host memory and the device; a LinkTime has this kind or a CommKind. */
typedef enum LinkCopy { LINK_TO_DEVICE = COMM_KINDS, LINK_TO_HOST } LinkCopy;

/* A measured time. */
typedef struct LinkTime {
    int kind, members, per_host; /* members = per_host = 1 for a copy */
    double bytes, ns;
} LinkTime;

/* A description of identical hosts. Bandwidths are those that collectives reach, in GB/s in each direction. */
typedef struct LinkHost {
    double ranks, nics, rails; /* GPUs and NICs of a host; networks that connect NICs of equal index */
    double nvlink, nvlink_ns;  /* of a GPU; latency of a step between two GPUs */
    double nic, nic_ns;        /* of a NIC; latency of a step between hosts */
    double pcie, pcie_ns;      /* of copies between host memory and a GPU */
} LinkHost;

typedef struct Links {
    LinkTime *time; /* [n], sorted */
    int n;
    bool described;
    LinkHost host; /* valid if described */
} Links;

/* How a time was predicted: between measured sizes; from other sizes or groups; from the description; not at all. */
typedef enum LinkSource { LINK_MEASURED, LINK_BEYOND, LINK_DESCRIBED, LINK_NONE, LINK_SOURCES } LinkSource;

/* Predicts the time of a collective in ns. `per_host` is the number of members on one host. Returns 0 for one member,
 * and if the source is LINK_NONE. */
double links_time(const Links *, CommKind, double bytes, int members, int per_host);
LinkSource links_source(const Links *, CommKind, double bytes, int members, int per_host);
/* Predicts the time of a copy in ns. */
double links_copy_time(const Links *, LinkCopy, double bytes, LinkSource *);

/* Adds a measured time. Returns a user error if there are too many. */
Err links_append(Links *, LinkTime);
/* Adds the times and the description in a file: a rates file, a result of `bench comm`, or a description. Zero-initialize
 * the links first, and release them with links_free, even after an error. Returns a user error for a second
 * description. */
Err links_read(const char *path, Links *);
/* The same for a file that has been parsed. NULL means that it is not JSON. */
Err links_add(const char *path, const json_t *root, Links *);
/* Returns the times as the member `links` of a rates file. */
json_t *links_json(const Links *);
void links_free(Links *);
