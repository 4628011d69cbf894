/* The control connection: TCP over a management address, carrying short messages of 64-bit words.
 * On the wire: u32 type, u32 word count, then the words; all big-endian. Sends are queued and never block;
 * a peer that stays silent past the peer timeout counts as lost. */
#ifndef CLIENTS_CONTROL_H
#define CLIENTS_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTROL_WORDS_MAX 8192

struct message {
    uint32_t type, count;
    uint64_t words[CONTROL_WORDS_MAX];
};

struct buffer {
    unsigned char *data;
    size_t used, room;
};

struct control {
    int fd;
    bool lost; /* EOF, reset, timed out, or nonsense received */
    char why[96];
    struct buffer in, out;
};

/* Accept one client, within timeout_ns. 0 or an errno value; ETIMEDOUT when nobody came. */
int control_accept(struct control *c, uint16_t port, uint64_t timeout_ns, uint32_t peer_timeout_s);
/* Connect, trying again until timeout_ns is over. 0 or an errno value; EADDRNOTAVAIL: the name has no
 * address. */
int control_connect(struct control *c, const char *host, uint16_t port, uint64_t timeout_ns,
                    uint32_t peer_timeout_s);
void control_send(struct control *c, uint32_t type, const uint64_t *words, uint32_t count);
/* Move bytes both ways, as far as they go without blocking. */
void control_pump(struct control *c);
bool control_next(struct control *c, struct message *m);
/* Wait for one message of this type; other types are an error. False: lost or timed out. */
bool control_expect(struct control *c, uint32_t type, struct message *m, uint64_t timeout_ns);
/* Flush what is queued, say that nothing follows, and wait for the peer to do the same. */
void control_finish(struct control *c, uint64_t timeout_ns);

#endif
