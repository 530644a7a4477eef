/* answer PORT FILE: an HTTP server whose every answer is the first kilobyte of FILE. For tests of the cluster. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void stop(int received) {
    (void)received;
    _exit(0);
}

static int listen_on(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server, (struct sockaddr *)&address, sizeof address) != 0 || listen(server, 16) != 0) {
        perror("answer: listen");
        exit(1);
    }
    return server;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        puts("usage: answer PORT FILE");
        return 0;
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    int server = listen_on(atoi(argv[1]));
    puts("listening");
    fflush(stdout);
    for (;;) {
        int client = accept(server, NULL, NULL);
        char request[4096], body[1024];
        FILE *file = fopen(argv[2], "rb");
        size_t length = file ? fread(body, 1, sizeof body, file) : 0;
        if (file)
            fclose(file);
        if (read(client, request, sizeof request) > 0) {
            dprintf(client, "HTTP/1.0 %s\r\nContent-Length: %zu\r\n\r\n", file ? "200 OK" : "404 Not Found", length);
            if (write(client, body, length) < 0)
                perror("answer: write");
        }
        close(client);
    }
}
