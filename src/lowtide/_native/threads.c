/* A small pool of threads that read pieces with pread: for machines that allow no queue, and for file systems that
 * have none. The call returns when every thread has put its piece down, so nobody writes into a buffer later. */
#include "queue.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct lt_pool {
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    pthread_t *threads;
    unsigned count, busy;
    uint64_t turn; /* rises with every call */
    int ending;
    lt_pieces *pieces;
    unsigned char *staging;
    int64_t slot_bytes;
};

typedef struct {
    lt_pool *pool;
    unsigned number;
} worker;

static void read_pieces(lt_pool *pool, unsigned number) {
    lt_pieces *pieces = pool->pieces;
    lt_call *call = pieces->call;
    for (;;) {
        lt_slot slot;
        pthread_mutex_lock(&pool->lock);
        int any = lt_pieces_next(pieces, &slot);
        pthread_mutex_unlock(&pool->lock);
        if (!any) return;
        slot.memory = pool->staging + number * pool->slot_bytes;
        if (pieces->alignment == 1 && call->sink.x == NULL) { /* no need for a copy: these threads are waited for */
            slot.memory = call->sink.into + call->sink.targets[slot.run] + slot.at;
        }
        for (;;) {
            ssize_t got = pread(slot.fd, slot.memory + slot.got, (size_t)(slot.span - slot.got), slot.first + slot.got);
            if (lt_slot_came(call, &slot, got < 0 ? -errno : got, pieces->alignment) == LT_SLOT_DONE) break;
        }
    }
}

static void *work(void *argument) {
    lt_pool *pool = ((worker *)argument)->pool;
    unsigned number = ((worker *)argument)->number;
    uint64_t seen = 0;
    free(argument);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->turn == seen && !pool->ending) pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->ending) break;
        seen = pool->turn;
        pthread_mutex_unlock(&pool->lock);
        read_pieces(pool, number);
        pthread_mutex_lock(&pool->lock);
        if (--pool->busy == 0) pthread_cond_signal(&pool->idle);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

void lt_pool_close(lt_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->ending = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->count; i++) pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->idle);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool);
}

lt_pool *lt_pool_open(unsigned threads) {
    lt_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->threads = calloc(threads, sizeof *pool->threads);
    if (pool->threads == NULL) return free(pool), NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads that Python knows */
    for (; pool->count < threads; pool->count++) {
        worker *one = malloc(sizeof *one);
        if (one == NULL) break;
        *one = (worker){pool, pool->count};
        if (pthread_create(&pool->threads[pool->count], NULL, work, one) != 0) {
            free(one);
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool->count == 0) return lt_pool_close(pool), NULL; /* fewer threads than asked for are fine */
    return pool;
}

int lt_pool_read(lt_pool *pool, lt_pieces *pieces, unsigned char *staging, int64_t slot_bytes) {
    pthread_mutex_lock(&pool->lock);
    pool->pieces = pieces;
    pool->staging = staging;
    pool->slot_bytes = slot_bytes;
    pool->busy = pool->count;
    pool->turn++;
    pthread_cond_broadcast(&pool->work);
    while (pool->busy) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 50000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&pool->idle, &pool->lock, &until);
        if (pool->busy == 0) break;
        pthread_mutex_unlock(&pool->lock); /* never hold a lock while asking: the answer may need Python's */
        lt_asks_to_stop(pieces->call, 0);
        pthread_mutex_lock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}
