# SPDX-License-Identifier: Apache-2.0
#
# PyTorch and a wheel of tencache: `make wheel`, then `docker build --tag tencache .`. Programs run
# under tencache: docker run tencache --device-memory 8GiB -- python train.py. docs/containers.md
# says more.
FROM python:3.11-slim

ARG TORCH=2.13.*
ARG TORCH_INDEX=https://pypi.org/simple

# The wheel is mounted while it is installed, so that no layer keeps a copy.
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --index-url "${TORCH_INDEX}" "torch==${TORCH}" \
 && pip install --no-cache-dir /dist/tencache-*.whl \
 && useradd --create-home --uid 1000 trainer \
 && install --directory --mode 1777 /spill

USER 1000
WORKDIR /work
VOLUME /spill
ENTRYPOINT ["tencache", "run", "--spill-dir", "/spill"]
CMD ["--help"]
