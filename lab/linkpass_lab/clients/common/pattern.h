/* Payload patterns: every byte is a function of (seed, queue pair, direction, sequence, offset).
 *
 * Word 0 of a message is its sequence number under a mask, so that a wrong message can say which one it is;
 * the other words are a hash of (key, sequence, word index). Memory that holds no message is poison. */
#ifndef CLIENTS_PATTERN_H
#define CLIENTS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POISON 0xD7

/* A 64-bit finaliser: every input bit reaches every output bit. */
uint64_t mix64(uint64_t x);

uint64_t pattern_key(uint64_t seed, uint32_t qp, uint32_t direction);
uint64_t pattern_word(uint64_t key, uint64_t seq, uint64_t index);

/* Write bytes [offset, offset + len) of message seq to `to`. */
void pattern_fill(uint64_t key, uint64_t seq, uint64_t offset, void *to, size_t len);

/* Index of the first wrong byte, or len when all are right. */
size_t pattern_check(uint64_t key, uint64_t seq, uint64_t offset, const void *from, size_t len);

/* Which message is this? True and *seq set when the first 16 bytes are those of some message of this key. */
bool pattern_owner(uint64_t key, const void *payload, size_t len, uint64_t *seq);

void poison_fill(void *to, size_t len);
/* Index of the first byte that isn't poison, or len. */
size_t poison_check(const void *from, size_t len);

/* An order-sensitive 64-bit sum of bytes; start from 0 or a former result. */
uint64_t checksum_bytes(uint64_t sum, const void *from, size_t len);

#endif
