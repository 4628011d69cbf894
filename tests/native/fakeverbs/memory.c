/* Protection domains, memory regions, address handles; keys and bounds. */
#include "fake_internal.h"

#include <errno.h>
#include <stdlib.h>

FAKE_API struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct nic *nic = fake_nic_of_context(context);
    struct ibv_pd *pd = calloc(1, sizeof(*pd));

    fake_lock();
    if (pd && fake_refuse(nic)) {
        free(pd);
        pd = NULL;
    }
    if (pd) {
        pd->context = context;
        nic->objects++;
    }
    fake_unlock();
    return pd;
}

/* Keys are numbers in ascending order with a tag below. */
static uint32_t key_index(uint32_t key) {
    return (key >> 8) - FAKE_FIRST_KEY;
}

/* Room for the next key's region; false, with errno set: no memory. */
static bool room_for_mr(void) {
    const uint32_t index = fake.next_key - FAKE_FIRST_KEY;

    if (index < fake.mr_capacity)
        return true;
    const uint32_t capacity = 2 * index + 64;
    struct mr **mrs = realloc(fake.mrs, capacity * sizeof(struct mr *));
    if (!mrs)
        return false;
    for (uint32_t i = fake.mr_capacity; i < capacity; i++)
        mrs[i] = NULL;
    fake.mrs = mrs;
    fake.mr_capacity = capacity;
    return true;
}

static bool pd_in_use(const struct ibv_pd *pd) {
    for (uint32_t i = 0; i < fake.mr_capacity; i++)
        if (fake.mrs[i] && fake.mrs[i]->ibv.pd == pd)
            return true;
    for (struct qp *qp = qp_newest(); qp; qp = qp_older(qp))
        if (qp->ibv.pd == pd)
            return true;
    return false;
}

FAKE_API int ibv_dealloc_pd(struct ibv_pd *pd) {
    fake_lock();
    if (pd_in_use(pd)) {
        fake_unlock();
        return EBUSY;
    }
    fake_nic_of_context(pd->context)->objects--;
    fake_unlock();
    free(pd);
    return 0;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
    struct nic *nic = fake_nic_of_context(pd->context);
    const int remote_write = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

    /* Remote write and atomic need local write: ibv_reg_mr(3). */
    if ((access & remote_write) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
        errno = EINVAL;
        return NULL;
    }
    struct mr *mr = calloc(1, sizeof(*mr));
    fake_lock();
    if (mr && (fake_refuse(nic) || !room_for_mr())) {
        free(mr);
        mr = NULL;
    }
    if (mr) {
        mr->ibv = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length};
        mr->ibv.handle = fake.next_key;
        /* The two keys differ, and differ from NIC to NIC: mixing them up must be seen. */
        mr->ibv.lkey = fake.next_key << 8 | 0x11;
        mr->ibv.rkey = fake.next_key << 8 | 0x22;
        fake.next_key++;
        mr->iova = iova;
        mr->access = access;
        fake.mrs[key_index(mr->ibv.lkey)] = mr;
        nic->objects++;
    }
    fake_unlock();
    return mr ? &mr->ibv : NULL;
}

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
FAKE_API struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
    return reg(pd, addr, length, (uintptr_t)addr, access);
}

FAKE_API struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                        int access) {
    return reg(pd, addr, length, iova, access);
}

FAKE_API struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                         unsigned int access) {
    return reg(pd, addr, length, iova, (int)access);
}

/* Windows have a key and nothing behind it: what is tested is who may use them. */
struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type) {
    struct ibv_mw *mw = calloc(1, sizeof(*mw));

    if (!mw)
        return NULL;
    fake_lock();
    *mw =
        (struct ibv_mw){.context = pd->context, .pd = pd, .type = type, .rkey = fake.next_key++ << 8 | 0x33};
    fake_nic_of_context(pd->context)->objects++;
    fake_unlock();
    return mw;
}

int fake_dealloc_mw(struct ibv_mw *mw) {
    fake_lock();
    fake_nic_of_context(mw->context)->objects--;
    fake_unlock();
    free(mw);
    return 0;
}

FAKE_API int ibv_dereg_mr(struct ibv_mr *ibv) {
    struct mr *mr = CONTAINER(ibv, struct mr, ibv);

    fake_lock();
    fake.mrs[key_index(ibv->lkey)] = NULL;
    fake_nic_of_context(ibv->context)->objects--;
    fake_unlock();
    free(mr);
    return 0;
}

FAKE_API int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t length,
                          int access) {
    struct mr *mr = CONTAINER(ibv, struct mr, ibv);

    fake_lock();
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        ibv->addr = addr;
        ibv->length = length;
        mr->iova = (uintptr_t)addr;
    }
    if (flags & IBV_REREG_MR_CHANGE_PD)
        ibv->pd = pd;
    if (flags & IBV_REREG_MR_CHANGE_ACCESS)
        mr->access = access;
    fake_unlock();
    return 0;
}

void *mr_translate(struct nic *nic, struct ibv_pd *pd, uint32_t key, bool remote, uint64_t addr,
                   uint64_t length, int access) {
    const uint32_t index = key_index(key);
    const struct mr *mr = index < fake.mr_capacity ? fake.mrs[index] : NULL;

    if (!mr || (remote ? mr->ibv.rkey : mr->ibv.lkey) != key)
        return NULL;
    if (fake_nic_of_context(mr->ibv.context) != nic || mr->ibv.pd != pd || (access & ~mr->access))
        return NULL;
    if (addr < mr->iova || length > mr->ibv.length || addr - mr->iova > mr->ibv.length - length)
        return NULL;
    return (char *)mr->ibv.addr + (addr - mr->iova);
}

uint64_t sges_length(const struct ibv_sge *sges, int count) {
    uint64_t length = 0;

    for (int i = 0; i < count; i++)
        length += sges[i].length;
    return length;
}

bool sges_copy(struct qp *qp, const struct ibv_sge *sges, int count, uint64_t offset, void *buffer,
               uint32_t length, bool to_sges) {
    uint8_t *bytes = buffer;

    for (int i = 0; i < count && length; i++) {
        if (offset >= sges[i].length) {
            offset -= sges[i].length;
            continue;
        }
        uint32_t part = sges[i].length - (uint32_t)offset;
        if (part > length)
            part = length;
        uint8_t *memory = mr_translate(qp->nic, qp->ibv.pd, sges[i].lkey, false, sges[i].addr + offset, part,
                                       to_sges ? IBV_ACCESS_LOCAL_WRITE : 0);
        if (!memory)
            return false;
        memcpy(to_sges ? memory : bytes, to_sges ? bytes : memory, part);
        bytes += part;
        length -= part;
        offset = 0;
    }
    return length == 0;
}

/* Address handles exist for programs that make them; datagrams aren't carried. */
FAKE_API struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
    struct ibv_ah *ah = calloc(1, sizeof(*ah));

    (void)attr;
    if (ah) {
        ah->context = pd->context;
        ah->pd = pd;
        fake_lock();
        fake_nic_of_context(pd->context)->objects++;
        fake_unlock();
    }
    return ah;
}

FAKE_API int ibv_destroy_ah(struct ibv_ah *ah) {
    fake_lock();
    fake_nic_of_context(ah->context)->objects--;
    fake_unlock();
    free(ah);
    return 0;
}
