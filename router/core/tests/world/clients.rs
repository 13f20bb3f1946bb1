//! Clients of a world: what they ask, how they read, and what they got.

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use text_generation_core::error::InferError;
use text_generation_core::infer::{GenerateStream, Group, Infer};
use text_generation_core::types::{
    Dialect, FinishReason, GenerateParameters, GenerateRequest, Inputs, PrefillToken,
    RequestInstants, StreamEvent,
};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::model::{self, Task, character};
use super::pictures::Picture;

/// How a client takes its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reading {
    /// As it comes.
    AtOnce,
    /// With so long a rest after each token.
    Slowly(Duration),
    /// Nothing before so long a time has passed.
    Late(Duration),
    /// It leaves after so long a time.
    Leaves(Duration),
}

#[derive(Debug, Clone)]
pub struct Client {
    /// When it comes, from the beginning on.
    pub at: Duration,
    /// What its first sample is asked for; the seeds of others count up.
    pub task: Task,
    pub samples: u32,
    pub priority: i32,
    pub reading: Reading,
}

/// How one generation ended for its client.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    Finished(FinishReason),
    Failed(InferError),
    Left,
}

#[derive(Debug)]
pub struct Outcome {
    pub task: Task,
    pub priority: i32,
    pub reading: Reading,
    pub tokens: Vec<u32>,
    /// When each of `tokens` was read.
    pub times: Vec<Instant>,
    pub end: End,
    pub ended: Instant,
    /// Of one that finished.
    pub instants: Option<RequestInstants>,
}

/// Sends what all clients ask when they ask it; returns what became of each generation.
pub async fn serve(infer: &Infer, clients: Vec<Client>) -> Vec<Outcome> {
    let began = Instant::now();
    let tasks = clients.into_iter().map(|client| {
        let infer = infer.clone();
        tokio::spawn(async move {
            sleep_until(began + client.at).await;
            client.run(&infer).await
        })
    });
    let outcomes = join_all(tasks.collect::<Vec<_>>()).await;
    outcomes.into_iter().flat_map(Result::unwrap).collect()
}

impl Client {
    fn request(&self) -> GenerateRequest {
        let task = &self.task;
        GenerateRequest {
            inputs: Inputs::Ids(task.prompt.clone()),
            parameters: GenerateParameters {
                max_new_tokens: Some(task.max_new_tokens),
                do_sample: task.seed.is_some(),
                seed: task.seed,
                ignore_eos: task.ignore_eos,
                stop: task
                    .stop
                    .map(|id| character(id).into())
                    .into_iter()
                    .collect(),
                priority: Some(self.priority),
                decoder_input_details: task.scored,
                prediction: model::prediction(task).map(Inputs::Ids),
                ..GenerateParameters::default()
            },
            add_special_tokens: true,
            dialect: Dialect::Tgi,
            images: task.pictures.iter().map(Picture::given).collect(),
        }
    }

    async fn run(self, infer: &Infer) -> Vec<Outcome> {
        let group = Group {
            request: self.request(),
            samples: self.samples,
        };
        let streams = infer.generate_group(group).await.unwrap();
        join_all(streams.into_iter().map(|stream| self.read(stream))).await
    }

    async fn read(&self, mut stream: GenerateStream) -> Outcome {
        let seed = self.task.seed.map(|seed| seed + u64::from(stream.index));
        let mut outcome = Outcome {
            task: Task {
                seed,
                ..self.task.clone()
            },
            priority: self.priority,
            reading: self.reading,
            tokens: Vec::new(),
            times: Vec::new(),
            end: End::Left,
            ended: Instant::now(),
            instants: None,
        };
        match self.reading {
            Reading::Leaves(after) => {
                let leaves = Instant::now() + after;
                // Where it ends before, it has an end.
                let _ = timeout_at(leaves, outcome.take(&mut stream, Duration::ZERO)).await;
            }
            Reading::Late(after) => {
                sleep(after).await;
                outcome.take(&mut stream, Duration::ZERO).await;
            }
            Reading::Slowly(rest) => outcome.take(&mut stream, rest).await,
            Reading::AtOnce => outcome.take(&mut stream, Duration::ZERO).await,
        }
        outcome.ended = Instant::now();
        outcome
    }
}

impl Outcome {
    /// Reads to the end, which comes once.
    async fn take(&mut self, stream: &mut GenerateStream, rest: Duration) {
        while let Some(event) = stream.next().await {
            assert_eq!(self.end, End::Left, "something follows the end");
            match event {
                Ok(StreamEvent::Prefill(prompt)) => self.prompt(&prompt),
                Ok(StreamEvent::Token { token, .. }) => self.token(token.id),
                Ok(StreamEvent::End {
                    token,
                    generated,
                    instants,
                    ..
                }) => {
                    self.token(token.id);
                    assert_eq!(generated.generated_tokens as usize, self.tokens.len());
                    self.end = End::Finished(generated.finish_reason);
                    self.instants = Some(instants);
                }
                Err(error) => self.end = End::Failed(error),
            }
            if !rest.is_zero() {
                sleep(rest).await;
            }
        }
        assert_ne!(self.end, End::Left, "a stream without an end");
    }

    /// The prompt with its log-probabilities: of all tokens but the first, once, before the answer.
    fn prompt(&self, prompt: &[PrefillToken]) {
        assert!(self.task.scored, "nobody asked for it");
        assert!(self.tokens.is_empty());
        let ids: Vec<u32> = prompt.iter().map(|token| token.id).collect();
        assert_eq!(ids, self.task.prompt);
        assert!(prompt[1..].iter().all(|token| token.logprob.is_some()));
    }

    fn token(&mut self, id: u32) {
        self.tokens.push(id);
        self.times.push(Instant::now());
    }
}
