//! Plans and masks as bytes: they are encoded once, and the same bytes go to every rank.

use std::marker::PhantomData;

use bytes::{BufMut, Bytes};
use prost::Message;
use text_generation_proto::v1;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

/// The calls of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepMethod {
    /// Carries a plan with chunks.
    Prefill,
    /// Carries a plan without.
    Decode,
    /// Carries the masks of a plan.
    Constrain,
}

impl StepMethod {
    /// The call that carries this plan.
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
            Self::Constrain => "Constrain",
        }
    }

    pub(crate) fn path(self) -> PathAndQuery {
        PathAndQuery::from_static(match self {
            Self::Prefill => "/text_generation.v1.TextGenerationService/Prefill",
            Self::Decode => "/text_generation.v1.TextGenerationService/Decode",
            Self::Constrain => "/text_generation.v1.TextGenerationService/Constrain",
        })
    }
}

/// Sends bytes as they are and reads an `R`.
#[derive(Debug)]
pub(crate) struct Encoded<R>(PhantomData<fn() -> R>);

impl<R> Encoded<R> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R: Message + Default + 'static> Codec for Encoded<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<R> Encoder for Encoded<R> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl<R: Message + Default> Decoder for Encoded<R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        let reply = R::decode(buffer);
        reply
            .map(Some)
            .map_err(|error| Status::internal(format!("a reply cannot be read: {error}")))
    }
}
