/* Replies that are pulled by their reader: transport_ops' open, read and close. */
#ifndef BELAY_TRANSPORT_CURL_CURL_STREAM_H
#define BELAY_TRANSPORT_CURL_CURL_STREAM_H

#include "effect/transport.h"

enum err_kind curl_stream_open(struct transport *base, const struct http_request *req,
                               struct http_response *ret_head, struct http_stream **ret,
                               struct err *err);
enum err_kind curl_stream_read(struct http_stream *s, char *bytes, size_t cap, size_t *ret_len,
                               struct err *err);
void curl_stream_close(struct http_stream *s);

#endif
