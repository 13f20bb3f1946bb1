//! Plans as bytes: a plan is encoded once, and the same bytes go to every rank.

use bytes::{BufMut, Bytes};
use prost::Message;
use text_generation_proto::v1;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

/// The two calls that carry a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepMethod {
    /// Of a plan with chunks.
    Prefill,
    /// Of a plan without.
    Decode,
}

impl StepMethod {
    pub(crate) fn of(plan: &v1::StepPlan) -> Self {
        if plan.chunks.is_empty() {
            Self::Decode
        } else {
            Self::Prefill
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Prefill => "Prefill",
            Self::Decode => "Decode",
        }
    }

    pub(crate) fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::Prefill => "/text_generation.v1.TextGenerationService/Prefill",
            Self::Decode => "/text_generation.v1.TextGenerationService/Decode",
        })
    }
}

/// Sends bytes as they are and reads a [`v1::StepReply`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodedPlan;

impl Codec for EncodedPlan {
    type Encode = Bytes;
    type Decode = v1::StepReply;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for EncodedPlan {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, plan: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(plan);
        Ok(())
    }
}

impl Decoder for EncodedPlan {
    type Item = v1::StepReply;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<v1::StepReply>, Status> {
        let reply = v1::StepReply::decode(buffer);
        reply
            .map(Some)
            .map_err(|error| Status::internal(format!("a reply cannot be read: {error}")))
    }
}
