# The hub in a container: `docker build -t dragoman .`, then examples/docker/README.md. With the extras
# postgres, redis and otel, for several hubs: `docker build --build-arg LOCK=cluster -t dragoman-cluster .`
FROM python:3.13-slim AS build
ARG LOCK=core
WORKDIR /src
RUN python -m venv /opt/dragoman
COPY locks/core.lock locks/cluster.lock locks/
RUN /opt/dragoman/bin/pip install --no-cache-dir --require-hashes -r locks/$LOCK.lock
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY src src
RUN /opt/dragoman/bin/pip install --no-cache-dir --no-deps . && /opt/dragoman/bin/pip uninstall --yes pip

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home dragoman && install -d -o dragoman -g dragoman -m 700 /data
COPY --from=build /opt/dragoman /opt/dragoman
# Every setting can be given so; see docs/configuration.md. A hub that is reached from outside of
# the container needs a key: set DRAGOMAN_API_KEY, or run `dragoman keys create NAME` in it.
ENV PATH=/opt/dragoman/bin:$PATH \
    DRAGOMAN_HOME=/data \
    DRAGOMAN_SERVER__HOST=0.0.0.0 \
    DRAGOMAN_LOG__FORMAT=json
VOLUME /data
USER dragoman
EXPOSE 50051
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s CMD ["dragoman", "status"]
ENTRYPOINT ["dragoman"]
CMD ["up"]
