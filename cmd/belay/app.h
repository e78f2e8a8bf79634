/* The parts of the controller, put together. */
#ifndef BELAY_CMD_APP_H
#define BELAY_CMD_APP_H

#include "base/err.h"
#include "dirs.h"
#include "flags.h"

struct app;

/* Find the API server and helm, check the CRD, start all threads. INVALID with code 2 is wrong
 * usage (a flag); everything else is a runtime failure. Blocks until the caches are filled, or
 * until a SIGTERM is pending. */
enum err_kind app_start(const struct flags *flags, const struct dirs *dirs, struct app **ret,
                        struct err *err) MUST_CHECK;
/* No new locks; what has not reached helm is given up. */
void app_stop_begin(struct app *app);
/* Has every worker ended? */
bool app_is_idle(struct app *app);
/* SIGINT to every helm. */
void app_interrupt(struct app *app);
/* SIGKILL to every helm: the ones that did not listen. */
void app_kill(struct app *app);
/* End the other threads and free everything; only when idle. */
void app_stop(struct app *app);

#endif
