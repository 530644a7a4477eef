/* The first process of every pod: it holds the pod's namespaces open, reaps orphans and ends when told to. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

int main(void) {
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    sigaddset(&awaited, SIGCHLD);
    sigprocmask(SIG_BLOCK, &awaited, NULL);
    for (;;) {
        int received = 0;
        if (sigwait(&awaited, &received) == 0 && received != SIGCHLD)
            return 0;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}
