/* Packets between NICs: in order, unless a test has it otherwise; lost where a test says so. */
#include "fake_internal.h"

#include <stdlib.h>

struct packet *packet_new(const struct qp *qp, enum opcode opcode, uint32_t psn, uint32_t length) {
    struct packet *packet = calloc(1, sizeof(*packet) + length);

    if (!packet)
        abort();
    packet->source = qp->nic->index;
    packet->target = qp->peer;
    packet->source_qpn = qp->ibv.qp_num;
    packet->target_qpn = qp->attr.dest_qp_num;
    packet->psn = psn;
    packet->opcode = opcode;
    packet->length = length;
    return packet;
}

void packet_free(struct packet *packet) {
    free(packet);
}

static enum fake_kind kind_of(const struct packet *packet) {
    switch (packet->opcode) {
    case OP_ACK:
    case OP_NAK:
    case OP_RNR:
        return FAKE_ACK;
    case OP_READ_RESPONSE:
    case OP_ATOMIC_RESPONSE:
        return FAKE_RESPONSE;
    default:
        return FAKE_REQUEST;
    }
}

static bool is_lost(const struct packet *packet) {
    const struct fake_packet_info info = {.source = packet->source,
                                          .target = packet->target,
                                          .source_qpn = packet->source_qpn,
                                          .target_qpn = packet->target_qpn,
                                          .psn = packet->psn,
                                          .kind = kind_of(packet),
                                          .length = packet->length,
                                          .first = packet->first,
                                          .last = packet->last};

    if (packet->target < 0 || !fake.nics[packet->source].up || !fake.nics[packet->target].up)
        return true;
    if (fake.wires[packet->source][packet->target].cut & info.kind)
        return true;
    return fake.filter && fake.filter(&info, fake.filter_arg) == FAKE_DROP;
}

static void lose(struct packet *packet) {
    fake.nics[packet->source].stats.lost++;
    packet_free(packet);
}

void packet_send(struct packet *packet) {
    struct nic *nic = &fake.nics[packet->source];

    nic->stats.sent++;
    nic->stats.retransmitted += packet->retransmitted;
    if (is_lost(packet)) {
        lose(packet);
        return;
    }
    struct wire *wire = &fake.wires[packet->source][packet->target];
    packet->order = fake.packet_order++;
    *wire->tail = packet;
    wire->tail = &packet->next;
    wire->count++;
}

static struct packet *unlink_packet(struct wire *wire, size_t index) {
    struct packet **at = &wire->head;

    while (index-- && *at)
        at = &(*at)->next;
    struct packet *packet = *at;
    if (!packet)
        return NULL;
    *at = packet->next;
    if (!*at)
        wire->tail = at;
    packet->next = NULL;
    wire->count--;
    return packet;
}

void packet_arrive(struct packet *packet) {
    struct nic *nic = &fake.nics[packet->target];
    struct qp *qp = nic->up ? qp_find(nic, packet->target_qpn) : NULL;

    /* A packet carries no source queue pair, only an address: that much is checked, as a NIC does. */
    if (!qp || qp->peer != packet->source) {
        lose(packet);
        return;
    }
    nic->stats.delivered++;
    if (kind_of(packet) == FAKE_REQUEST)
        responder_receive(qp, packet);
    else
        requester_receive(qp, packet);
    packet_free(packet);
}

/* The oldest packet on wires to `target` (-1: any). */
static struct packet *take_oldest(int target, bool held_too) {
    struct wire *oldest = NULL;

    for (int i = 0; i < fake.nic_count; i++) {
        for (int j = 0; j < fake.nic_count; j++) {
            struct wire *wire = &fake.wires[i][j];
            if ((target >= 0 && j != target) || !wire->head || (wire->held && !held_too))
                continue;
            if (!oldest || wire->head->order < oldest->head->order)
                oldest = wire;
        }
    }
    return oldest ? unlink_packet(oldest, 0) : NULL;
}

bool wire_deliver(int target, bool held_too) {
    struct packet *packet = take_oldest(target, held_too);

    if (packet)
        packet_arrive(packet);
    return packet != NULL;
}

size_t fake_deliver(int nic, size_t n) {
    size_t done = 0;

    fake_lock();
    while (done < n && wire_deliver(nic, true))
        done++;
    fake_wake();
    fake_unlock();
    return done;
}

void fake_filter(fake_filter_fn filter, void *arg) {
    fake_lock();
    fake.filter = filter;
    fake.filter_arg = arg;
    fake_unlock();
}

static void each_wire(int source, int target, void (*change)(struct wire *wire, unsigned int value),
                      unsigned int value) {
    fake_lock();
    for (int i = 0; i < fake.nic_count; i++)
        for (int j = 0; j < fake.nic_count; j++)
            if ((source < 0 || source == i) && (target < 0 || target == j))
                change(&fake.wires[i][j], value);
    fake_wake();
    fake_unlock();
}

static void set_cut(struct wire *wire, unsigned int kinds) {
    wire->cut = kinds;
}

static void set_held(struct wire *wire, unsigned int held) {
    wire->held = held != 0;
}

void fake_cut(int source, int target, unsigned int kinds) {
    each_wire(source, target, set_cut, kinds);
}

void fake_hold(int source, int target, bool held) {
    each_wire(source, target, set_held, held);
}

size_t fake_on_wire(int source, int target) {
    fake_lock();
    const size_t count = fake.wires[source][target].count;
    fake_unlock();
    return count;
}

size_t fake_lose_locked(struct wire *wire, size_t n) {
    size_t lost = 0;
    struct packet *packet;

    while (lost < n && (packet = unlink_packet(wire, 0))) {
        lose(packet);
        lost++;
    }
    return lost;
}

size_t fake_lose(int source, int target, size_t n) {
    fake_lock();
    const size_t lost = fake_lose_locked(&fake.wires[source][target], n);
    fake_unlock();
    return lost;
}

bool fake_overtake(int source, int target, size_t n) {
    fake_lock();
    struct packet *packet = unlink_packet(&fake.wires[source][target], n);
    if (packet)
        packet_arrive(packet);
    fake_unlock();
    return packet != NULL;
}
