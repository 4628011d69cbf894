/*
 * A job over the fake verbs library for two real agents: both of its ends live in this process, each with a
 * shim of its own (two copies of the library, as two hosts would have) that attaches to its host's agent.
 *
 *   flow SHIM_A SOCKET_A SHIM_B SOCKET_B PAIRS DEPTH PAUSE_MS FIRST_QPN
 *
 * PAIRS queue pairs join the hosts' NICs on rail 0.  Both ends keep DEPTH requests under way on each, posted
 * every PAUSE_MS ms: SENDs and WRITEs in turn, numbered.  Every completion must be a success and come in
 * order, every SEND arrive once and in order, and what a WRITE wrote must be there when the SEND behind it
 * is.  Whatever isn't so ends the program with 1.
 *
 * Commands come on standard input, a line each, and are answered on standard output with a line of JSON
 * (times: CLOCK_MONOTONIC, ns):
 *
 *   cut RAIL    the wires of that rail swallow everything from now on, and no error says so
 *   heal RAIL
 *   mark        start measuring anew
 *   told        under way, and of what was under way at the mark; when the last of those was done; longest
 *               time that one direction of one queue pair went without a completion since the mark
 *   stop        post nothing more, wait until all is done, end with 0
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "flow.h"

enum { RAILS = 2, NAP_US = 50, BATCH = 64, DRAIN_S = 90, SUBNET = 10, PSN_A = 0x1000, PSN_B = 0xfffff0 };

static struct side sides[2];
uint32_t pairs, depth;
static uint32_t pause_ms;
static uint64_t marked_done_ns; /* when the last of the requests of before the mark was done */
static bool stopping;

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void fail(const char *what, uint64_t detail) {
    fprintf(stderr, "flow: %s (%" PRIu64 ")\n", what, detail);
    exit(1);
}

/* ---- the job
 * ----------------------------------------------------------------------------------------------- */

static uint64_t number_at(const uint8_t *at) {
    uint64_t number;

    memcpy(&number, at, sizeof(number));
    return number;
}

static void post_recv(struct side *side, uint32_t i) {
    struct end *end = &side->ends[i];
    uint8_t *slot = end->memory + (depth + end->recvs % (2 * (uint64_t)depth)) * BYTES;
    struct ibv_sge sge = {.addr = (uintptr_t)slot, .length = BYTES, .lkey = side->mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = (uint64_t)i << 32, .sg_list = &sge, .num_sge = 1};

    if (ibv_post_recv(end->qp, &wr, &bad))
        fail("receive refused", i);
    end->recvs++;
}

/* Request n is a WRITE if n is even, else a SEND; both carry n, the WRITE into slot n / 2. */
static void post_send(struct side *side, const struct side *peer, uint32_t i) {
    struct end *end = &side->ends[i];
    const uint64_t n = end->posted;
    uint8_t *slot = end->memory + n % depth * BYTES;
    const uint8_t *there = peer->ends[i].memory + (3 * (uint64_t)depth + n / 2 % depth) * BYTES;
    struct ibv_sge sge = {.addr = (uintptr_t)slot, .length = BYTES, .lkey = side->mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = (uint64_t)i << 32 | (uint32_t)n,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = n % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.rdma = {(uintptr_t)there, peer->mr->rkey}};

    memcpy(slot, &n, sizeof(n));
    if (ibv_post_send(end->qp, &wr, &bad))
        fail("request refused", i);
    end->posted++;
}

static void post_all(void) {
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < pairs; i++)
            while (sides[s].ends[i].posted - sides[s].ends[i].done < depth)
                post_send(&sides[s], &sides[1 - s], i);
}

static void sent(struct side *side, const struct ibv_wc *wc, uint64_t now) {
    struct end *end = &side->ends[wc->wr_id >> 32];

    if ((uint32_t)wc->wr_id != (uint32_t)end->done || end->done == end->posted)
        fail("a completion out of order", wc->wr_id);
    end->done++;
    if (end->done == end->marked)
        marked_done_ns = now;
    if (now - end->last_ns > end->longest_ns)
        end->longest_ns = now - end->last_ns;
    end->last_ns = now;
}

static void received(struct side *side, const struct ibv_wc *wc) {
    const uint32_t i = (uint32_t)(wc->wr_id >> 32);
    struct end *end = &side->ends[i];
    const uint64_t n = 2 * end->heard + 1;
    const uint64_t place = end->heard % (2 * (uint64_t)depth);
    const uint64_t told = number_at(end->memory + (depth + place) * BYTES);
    const uint64_t written = number_at(end->memory + (3 * (uint64_t)depth + n / 2 % depth) * BYTES);

    if (wc->byte_len != BYTES || told != n)
        fail("a message lost, twice or out of order", told);
    /* A later WRITE to the same slot may be there already. */
    if (written < n - 1 || (written - (n - 1)) % (2 * (uint64_t)depth))
        fail("a WRITE lost or misplaced", written);
    end->heard++;
    post_recv(side, i);
}

static int poll_once(void) {
    struct ibv_wc wc[BATCH];
    int all = 0;

    for (int s = 0; s < 2; s++) {
        for (int receives = 0; receives < 2; receives++) {
            const int got = ibv_poll_cq(receives ? sides[s].recv_cq : sides[s].send_cq, BATCH, wc);
            const uint64_t now = now_ns();
            if (got < 0)
                fail("can't poll", 0);
            for (int k = 0; k < got; k++) {
                if (wc[k].status)
                    fail("a request failed", wc[k].status);
                if (receives)
                    received(&sides[s], &wc[k]);
                else
                    sent(&sides[s], &wc[k], now);
            }
            all += got;
        }
    }
    return all;
}

/* ---- commands
 * ---------------------------------------------------------------------------------------------- */

static void cut(int rail, unsigned int kinds) {
    fake_cut(rail, RAILS + rail, kinds);
    fake_cut(RAILS + rail, rail, kinds);
}

static void mark(void) {
    const uint64_t now = now_ns();

    marked_done_ns = 0;
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < pairs; i++) {
            struct end *end = &sides[s].ends[i];
            end->marked = end->posted;
            end->last_ns = now;
            end->longest_ns = 0;
        }
}

static uint64_t under_way(bool of_before_the_mark) {
    uint64_t count = 0;

    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < pairs; i++) {
            const struct end *end = &sides[s].ends[i];
            const uint64_t last = of_before_the_mark ? end->marked : end->posted;
            count += last > end->done ? last - end->done : 0;
        }
    return count;
}

static void tell(void) {
    const uint64_t now = now_ns(), left = under_way(true);
    uint64_t longest = 0, done = 0;

    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < pairs; i++) {
            const struct end *end = &sides[s].ends[i];
            const uint64_t silent =
                now - end->last_ns > end->longest_ns ? now - end->last_ns : end->longest_ns;
            longest = silent > longest ? silent : longest;
            done += end->done;
        }
    printf("{\"now\": %" PRIu64 ", \"under_way\": %" PRIu64 ", \"left\": %" PRIu64
           ", \"marked_done\": %" PRIu64 ", \"longest\": %" PRIu64 ", \"done\": %" PRIu64 "}\n",
           now, under_way(false), left, marked_done_ns, longest, done);
}

static void command(char *line) {
    const int rail = line[0] && strchr(line, ' ') ? atoi(strchr(line, ' ')) : -1;

    if (!strncmp(line, "cut ", 4) && rail >= 0 && rail < RAILS)
        cut(rail, FAKE_ALL);
    else if (!strncmp(line, "heal ", 5) && rail >= 0 && rail < RAILS)
        cut(rail, 0);
    else if (!strcmp(line, "mark"))
        mark();
    else if (!strcmp(line, "stop"))
        stopping = true;
    else if (strcmp(line, "told") != 0)
        fail(line, 0);
    tell();
    fflush(stdout);
}

static void take_commands(void) {
    static char text[256];
    static size_t length;
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char *end;

    if (poll(&in, 1, 0) <= 0)
        return;
    const ssize_t got = read(STDIN_FILENO, text + length, sizeof(text) - 1 - length);
    if (got <= 0)
        exit(3); /* whoever started us is gone */
    length += (size_t)got;
    text[length] = 0;
    while ((end = strchr(text, '\n'))) {
        *end = 0;
        command(text);
        length -= (size_t)(end + 1 - text);
        memmove(text, end + 1, length + 1);
    }
}

int main(int argc, char **argv) {
    struct fake_config config = fake_default_config();
    const struct timespec nap = {.tv_nsec = NAP_US * 1000};

    if (argc != 9) {
        fprintf(stderr, "flow SHIM_A SOCKET_A SHIM_B SOCKET_B PAIRS DEPTH PAUSE_MS FIRST_QPN\n");
        return 2;
    }
    pairs = (uint32_t)atoi(argv[5]);
    depth = (uint32_t)atoi(argv[6]);
    pause_ms = (uint32_t)atoi(argv[7]);
    config.first_subnet = SUBNET;
    config.first_qpn = (uint32_t)atoi(argv[8]);
    if (!pairs || !depth || !pause_ms || !fake_start(&config))
        return 2;
    side_attach(&sides[0], argv[1], argv[2], 0);
    side_attach(&sides[1], argv[3], argv[4], 1);
    for (int s = 0; s < 2; s++)
        side_make(&sides[s]);
    for (uint32_t i = 0; i < pairs; i++) {
        side_connect(&sides[0], &sides[1], i, PSN_A, PSN_B);
        side_connect(&sides[1], &sides[0], i, PSN_B, PSN_A);
        for (uint32_t k = 0; k < 2 * depth; k++) {
            post_recv(&sides[0], i);
            post_recv(&sides[1], i);
        }
    }
    fake_auto(true);
    mark();
    uint64_t next = now_ns(), until = UINT64_MAX;
    while (!stopping || under_way(false)) {
        const uint64_t now = now_ns();
        take_commands();
        if (stopping && until == UINT64_MAX)
            until = now + DRAIN_S * UINT64_C(1000000000);
        if (now > until)
            fail("requests are not done", under_way(false));
        if (!stopping && now >= next) {
            post_all();
            next = now + pause_ms * UINT64_C(1000000);
        }
        if (!poll_once())
            nanosleep(&nap, NULL);
    }
    for (uint32_t i = 0; i < pairs; i++) /* a message may be done before its receiver has looked */
        for (int s = 0; s < 2; s++)
            while (sides[1 - s].ends[i].heard < sides[s].ends[i].posted / 2)
                if (!poll_once() && now_ns() > until)
                    fail("a message never came", i);
    return 0;
}
