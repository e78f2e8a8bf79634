/* One line per event, JSON or logfmt, to stderr.
 *
 *   log_info("sync", "helm upgrade succeeded", LOG_S("key", key), LOG_I("generation", g));
 *
 * Fields that are common to a pass (key, generation, pass, holder, epoch) are set once per thread
 * by log_ctx_set and added to each line. Only cmd and the thread mains log above debug; everything
 * else returns errors. Never values, tokens or secrets. Thread-safe: a line is one write(2).
 * A line over 64 KiB loses its own fields and the rest of its message, and says cut=1. */
#ifndef BELAY_BASE_LOG_H
#define BELAY_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_FORMAT_FMT, LOG_FORMAT_JSON };

struct log_field {
    const char *name; /* static */
    const char *text; /* NULL: number is used */
    int64_t number;
};

#define LOG_S(n, s) ((struct log_field){.name = (n), .text = (s)})
#define LOG_I(n, i) ((struct log_field){.name = (n), .text = NULL, .number = (int64_t)(i)})

struct log_options {
    enum log_format format;
    enum log_level level;         /* the lowest that is written */
    int64_t (*now_wall_ns)(void); /* NULL: no ts field */
};

/* Once, before threads. Without it: logfmt, info, no time. */
void log_init(const struct log_options *options);
bool log_enabled(enum log_level level);
void log_write(enum log_level level, const char *component, const char *msg,
               const struct log_field *fields, size_t n);

/* Up to 8 fields for this thread's lines; texts are copied (up to 256 bytes each). n = 0 clears. */
void log_ctx_set(const struct log_field *fields, size_t n);
/* Add or replace one field. */
void log_ctx_put(struct log_field field);
void log_ctx_clear(void);

#define log_at(level, component, msg, ...)                                                         \
    log_write((level), (component), (msg),                                                         \
              (const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){0}},                           \
              sizeof((const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){0}}) /                  \
                      sizeof(struct log_field) -                                                   \
                  1)
#define log_debug(component, msg, ...) log_at(LOG_DEBUG, component, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_info(component, msg, ...)  log_at(LOG_INFO, component, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_warn(component, msg, ...)  log_at(LOG_WARN, component, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_error(component, msg, ...) log_at(LOG_ERROR, component, msg __VA_OPT__(, ) __VA_ARGS__)

#endif
