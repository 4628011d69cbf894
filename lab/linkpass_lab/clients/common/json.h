/* A small streaming JSON writer: commas, nesting and escapes are its business. Keys are NULL inside arrays.
 */
#ifndef CLIENTS_JSON_H
#define CLIENTS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH 16

struct json {
    FILE *out;
    int depth;
    bool filled[JSON_DEPTH]; /* has the container at this depth an element yet? */
};

void json_start(struct json *j, FILE *out);
void json_object(struct json *j, const char *key);
void json_array(struct json *j, const char *key);
void json_end_object(struct json *j);
void json_end_array(struct json *j);
void json_string(struct json *j, const char *key, const char *value); /* NULL value: null */
void json_u64(struct json *j, const char *key, uint64_t value);
void json_i64(struct json *j, const char *key, int64_t value);
void json_bool(struct json *j, const char *key, bool value);
void json_null(struct json *j, const char *key);
void json_seconds(struct json *j, const char *key,
                  uint64_t ns); /* written as seconds with 9 decimals, exact */
void json_double(struct json *j, const char *key, double value); /* null when not finite */

#endif
