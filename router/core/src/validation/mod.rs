//! Validation of an API request: it becomes one that can be queued, or an error that names the field.

mod beams;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use text_generation_client::types::{NextTokenChooser, TraceLink};
use text_generation_grammar::GrammarSource;

use crate::adapters::{Adapter, Adapters};
use crate::error::ValidationError;
use crate::grammar::{BadWords, Constraint, Grammars, Healing, ValidGrammar, Workers};
use crate::hints::Prediction;
use crate::media::{Expanded, Media, Vision};
use crate::tenant::Tenant;
use crate::tokenize::{TextTokenizer, TokenizerPool};
use crate::types::observer::Observed;
use crate::types::{
    Beams, Dialect, GenerateParameters, GenerateRequest, GivenImage, Inputs, StoppingCriteria,
    TextContent, ValidationLimits,
};

/// A request that fits the limits.
#[derive(Debug, Clone)]
pub struct ValidRequest {
    /// The prompt, truncated as asked, without what is generated again; at least one id.
    pub input_ids: Arc<[u32]>,
    pub chooser: NextTokenChooser,
    pub stopping: StoppingCriteria,
    pub stop_sequences: Vec<String>,
    pub dialect: Dialect,
    pub text: TextContent,
    pub top_n_tokens: u32,
    /// How its texts are searched for; set too in the requests that a search queues, of one token for each beam.
    pub beams: Option<Beams>,
    /// Asked for, and enabled in this server.
    pub prefill_logprobs: bool,
    /// The first token of the prompt whose log-probability is wanted.
    pub logprobs_from: usize,
    /// What its outputs may be, where the shards draft from it.
    pub prediction: Option<Arc<Prediction>>,
    /// What its outputs follow.
    pub grammar: Option<ValidGrammar>,
    /// The end of the prompt, where they begin with it.
    pub(crate) healing: Option<Healing>,
    /// What they never contain.
    pub(crate) bad_words: Option<BadWords>,
    /// What the model sees.
    pub media: Media,
    /// Whose weights are added to the base's.
    pub adapter: Option<Arc<Adapter>>,
    /// Lower runs first.
    pub priority: i32,
    /// Only requests with the same one share cached prefixes.
    pub cache_salt: Option<Arc<str>>,
    /// Whose it is.
    pub tenant: Tenant,
    /// Who follows it, until it is queued: a trace ends when nobody holds it any more, and the batcher may for longer.
    pub observed: Observed,
    /// Names it to the shards, where their steps are traced.
    pub trace_link: Option<TraceLink>,
}

impl ValidRequest {
    /// The seed of a sample: those of one request count up from the first, and wrap.
    pub fn seed(&self, sample: u64) -> u64 {
        self.chooser.seed.wrapping_add(sample)
    }

    /// Cached positions are shared where it is equal; 0: those of the base.
    pub(crate) fn adapter_generation(&self) -> u64 {
        self.adapter
            .as_ref()
            .map_or(0, |adapter| adapter.generation())
    }

    /// Whether its tokens are chosen by masks, at least at first.
    pub(crate) fn is_constrained(&self) -> bool {
        self.grammar.is_some() || self.healing.is_some() || self.bad_words.is_some()
    }

    /// Whether one of its own stop tokens ends it, after so many generated ones.
    pub(crate) fn stops_at(&self, id: u32, generated: u32) -> bool {
        self.stopping.stop_token_ids.contains(&id) && generated >= self.chooser.min_new_tokens
    }
}

/// Checks requests against the limits of this server. Clones share the tokenizer threads.
#[derive(Debug, Clone)]
pub struct Validator {
    pool: TokenizerPool,
    limits: ValidationLimits,
    /// Set where requests may have grammars.
    grammars: Option<Grammars>,
    /// Set where requests may have images.
    vision: Option<Vision>,
    adapters: Adapters,
    /// The shards draft from predictions.
    drafts: bool,
    /// The model is a classifier.
    classifies: bool,
}

impl Validator {
    /// Of a server without grammars, until [`with_grammars`](Self::with_grammars).
    pub fn new(pool: TokenizerPool, limits: ValidationLimits) -> Self {
        Self {
            pool,
            limits,
            grammars: None,
            vision: None,
            adapters: Adapters::default(),
            drafts: false,
            classifies: false,
        }
    }

    /// Encodes predictions, because the shards draft from them. Without this they are ignored.
    pub(crate) fn with_drafts(mut self, drafts: bool) -> Self {
        self.drafts = drafts;
        self
    }

    /// Of a model that is a classifier, or none.
    #[must_use]
    pub fn with_classes(mut self, classifies: bool) -> Self {
        self.classifies = classifies;
        self
    }

    /// Whether the model does what a request asks for.
    fn check_task(&self, classify: bool) -> Result<(), ValidationError> {
        match (self.classifies, classify) {
            (true, false) => Err(ValidationError::Classifies),
            (false, true) => Err(ValidationError::NoClasses),
            _ => Ok(()),
        }
    }

    /// Compiles grammars, where the limits allow any, of a model whose texts end with one of `eos_token_ids`. Needs a
    /// tokio runtime.
    pub(crate) fn with_grammars(mut self, eos_token_ids: &[u32]) -> Self {
        self.grammars = self.limits.grammar_support.then(|| {
            let tokenizer = self.tokenizer().clone();
            Grammars::new(tokenizer, self.limits.vocab_size, eos_token_ids)
        });
        self
    }

    /// Takes images.
    pub fn with_vision(mut self, vision: Vision) -> Self {
        self.vision = Some(vision);
        self
    }

    /// Takes requests that name these.
    pub fn with_adapters(mut self, adapters: Adapters) -> Self {
        self.adapters = adapters;
        self
    }

    /// That requests may name.
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// Set where requests may have images.
    pub fn vision(&self) -> Option<&Vision> {
        self.vision.as_ref()
    }

    /// The threads that follow grammars.
    pub(crate) fn mask_workers(&self) -> Option<Workers> {
        let grammars = self.grammars.as_ref();
        grammars.map(|grammars| grammars.workers.clone())
    }

    pub fn limits(&self) -> &ValidationLimits {
        &self.limits
    }

    pub fn pool(&self) -> &TokenizerPool {
        &self.pool
    }

    pub fn tokenizer(&self) -> &TextTokenizer {
        self.pool.tokenizer()
    }

    /// The number of generations asked for. Comes before [`validate`](Self::validate), which sees each of them.
    pub fn best_of(&self, given: u32) -> Result<(), ValidationError> {
        let max = self.limits.max_best_of;
        match given {
            1 => Ok(()),
            _ if max == 1 => Err(ValidationError::BestOfDisabled),
            0 => Err(ValidationError::BestOf { max, given }),
            _ if given > max => Err(ValidationError::BestOf { max, given }),
            _ => Ok(()),
        }
    }

    /// Whether a search may have so many beams. Comes before [`validate`](Self::validate), as each has a permit.
    pub fn beam_width(&self, given: u32) -> Result<(), ValidationError> {
        beams::check_width(given, &self.limits)
    }

    /// Whether the model knows all of `ids`; `field` is where they came from.
    pub fn check_ids(&self, field: &'static str, ids: &[u32]) -> Result<(), ValidationError> {
        rules::check_ids(field, ids, self.limits.vocab_size)
    }

    /// Whether a prompt of so many tokens can be answered at all.
    pub fn check_length(&self, tokens: usize) -> Result<(), ValidationError> {
        let parameters = GenerateParameters::default();
        rules::check_lengths(tokens, &parameters, &self.limits).map(drop)
    }

    /// The most tokens of a prompt behind which one more can come.
    pub fn longest_prompt(&self) -> usize {
        let before_one = self.limits.max_total_tokens.saturating_sub(1);
        self.limits.max_input_tokens.min(before_one) as usize
    }

    /// How many tokens of a prompt are kept, at its end.
    pub fn kept(&self, tokens: usize, parameters: &GenerateParameters) -> usize {
        rules::kept(tokens, parameters, &self.limits)
    }

    /// What a stream cannot do. Comes before everything else.
    pub fn stream(&self, parameters: &GenerateParameters) -> Result<(), ValidationError> {
        if parameters.best_of.is_some_and(|best_of| best_of != 1) {
            return Err(ValidationError::BestOfStream);
        }
        if parameters.decoder_input_details {
            return Err(ValidationError::PrefillDetailsStream);
        }
        Ok(())
    }

    /// Checks the parameters, encodes the prompt on a tokenizer thread and checks its length, in the order of the
    /// TGI contract; the first rule that fails gives the error. The work on a text is bounded by the size limit of
    /// request bodies. A sampling request without a seed gets a random one here.
    pub async fn validate(
        &self,
        request: GenerateRequest,
    ) -> Result<ValidRequest, ValidationError> {
        let GenerateRequest {
            inputs,
            mut parameters,
            add_special_tokens,
            dialect,
            images,
        } = request;
        self.check_task(parameters.classify)?;
        let beams = beams::check(&parameters, &self.limits)?;
        rules::check(&parameters, dialect, &self.limits)?;
        rules::check_inputs(&inputs)?;
        rules::check_truncate(parameters.truncate, dialect, &self.limits)?;
        if parameters.truncate.is_none() && !parameters.truncate_to_fit {
            rules::check_bytes(&inputs, self.tokenizer().longest_token(), &self.limits)?;
        }
        let ids = self.encode(inputs, add_special_tokens).await?;
        let salt = salt(
            parameters.tenant.cache_scope(),
            parameters.cache_salt.take(),
        );
        let Expanded { ids, media, .. } =
            self.see(ids, images, &parameters, salt.as_deref()).await?;
        let kept = rules::kept(ids.len(), &parameters, &self.limits);
        let input_ids = &ids[ids.len() - kept..];
        let max_new_tokens = rules::check_lengths(kept, &parameters, &self.limits)?;
        rules::check_min_new_tokens(parameters.min_new_tokens, max_new_tokens)?;
        self.check_ids("inputs", input_ids)?;
        let stop_token_ids = parameters.stop_token_ids.take().unwrap_or_default();
        self.check_ids("stop_token_ids", &stop_token_ids)?;
        let bad_words = self.bad_words(parameters.bad_words.take()).await?;
        let healing = if parameters.token_healing {
            let spans = media.spans.last();
            let first = spans.map_or(0, |span| (span.first + span.length) as usize);
            self.heal(input_ids, first).await?
        } else {
            None
        };
        let again = healing.as_ref().map_or(0, Healing::count);
        let input_ids = &input_ids[..input_ids.len() - again];
        let source = parameters.grammar.take();
        let grammar = self.compile(source, healing.as_ref()).await?;
        if bad_words.is_some() {
            let start = Constraint::new(grammar.as_ref(), healing.as_ref(), bad_words.as_ref());
            if start.is_some_and(|start| start.is_stuck()) {
                return Err(ValidationError::BadWordsForbidAll);
            }
        }
        let prediction = self.prediction(parameters.prediction.take()).await?;
        let adapter = self
            .adapter(parameters.adapter_id.take(), &parameters.tenant)
            .await?;
        let mut chooser = rules::chooser(&parameters, dialect);
        if grammar.as_ref().is_some_and(|grammar| grammar.only_ends) {
            // The empty text ends whatever is asked for.
            chooser.min_new_tokens = 0;
        }
        Ok(ValidRequest {
            input_ids: input_ids.into(),
            chooser,
            stopping: StoppingCriteria {
                max_new_tokens,
                ignore_eos_token: parameters.ignore_eos,
                stop_token_ids: stop_token_ids.into(),
            },
            text: rules::text_content(&parameters, dialect),
            top_n_tokens: parameters.top_n_tokens.unwrap_or(0),
            beams,
            // TGI needs a flag for it; a client of OpenAI's API who asks is the only one who pays.
            prefill_logprobs: parameters.decoder_input_details
                && (self.limits.prefill_logprobs || dialect == Dialect::OpenAi),
            logprobs_from: parameters.logprobs_from,
            media,
            prediction,
            adapter,
            priority: parameters.priority.unwrap_or(0),
            cache_salt: salt.map(Into::into),
            tenant: parameters.tenant,
            trace_link: parameters.observed.trace_link(),
            observed: parameters.observed,
            stop_sequences: parameters.stop,
            dialect,
            grammar,
            healing,
            bad_words,
        })
    }

    /// What the text may be. A server that does not draft has no use for it.
    async fn prediction(
        &self,
        given: Option<Inputs>,
    ) -> Result<Option<Arc<Prediction>>, ValidationError> {
        let Some(given) = given.filter(|given| self.drafts && !given.is_empty()) else {
            return Ok(None);
        };
        let longest = self.tokenizer().longest_token();
        rules::check_prediction(rules::least_tokens(&given, longest), &self.limits)?;
        let prediction = match given {
            Inputs::Ids(ids) => {
                self.check_ids("prediction", &ids)?;
                Ok(Prediction::new(ids))
            }
            Inputs::Text(text) => self.pool.encode_prediction(text).await,
        };
        let prediction =
            prediction.map_err(|error| ValidationError::Tokenizer(error.to_string()))?;
        rules::check_prediction(prediction.len(), &self.limits)?;
        Ok(Some(Arc::new(prediction)))
    }

    /// The tokens of bad words, at the beginning of a word and within one.
    async fn bad_words(
        &self,
        words: Option<Vec<String>>,
    ) -> Result<Option<BadWords>, ValidationError> {
        let words = words.unwrap_or_default();
        if words.is_empty() {
            return Ok(None);
        }
        if self.grammars.is_none() {
            return Err(ValidationError::BadWordsSupport);
        }
        let texts = words.iter().map(|word| word.trim_start());
        let texts = texts.flat_map(|word| [word.to_owned(), format!(" {word}")]);
        let ids = self.pool.encode_each(texts.collect()).await;
        let ids = ids.map_err(|error| ValidationError::Tokenizer(error.to_string()))?;
        Ok(BadWords::new(
            rules::bad_sequences(&ids),
            self.limits.vocab_size,
        ))
    }

    /// What `adapter_id` names, once it is loaded; an empty name is none.
    async fn adapter(
        &self,
        given: Option<String>,
        tenant: &Tenant,
    ) -> Result<Option<Arc<Adapter>>, ValidationError> {
        let Some(given) = given.filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let found = self.adapters.resolve(&given, tenant).await;
        match found.map_err(ValidationError::Adapter)? {
            Some(adapter) => Ok(Some(adapter)),
            None if self.adapters.is_none() => Err(ValidationError::NoAdapters),
            None => Err(ValidationError::AdapterId {
                given,
                known: match self.adapters.names(tenant) {
                    names if names.is_empty() => "none yet".to_owned(),
                    names => names,
                },
            }),
        }
    }

    /// What is generated again of a prompt whose tokens from `first` on may be.
    async fn heal(&self, prompt: &[u32], first: usize) -> Result<Option<Healing>, ValidationError> {
        let grammars = self.grammars.as_ref();
        let grammars = grammars.ok_or(ValidationError::HealingSupport)?;
        let healing = grammars.heal(prompt, first).await;
        healing.map_err(ValidationError::Grammar)
    }

    /// The grammar of a text that begins with what is generated again.
    async fn compile(
        &self,
        source: Option<GrammarSource>,
        healing: Option<&Healing>,
    ) -> Result<Option<ValidGrammar>, ValidationError> {
        let Some(source) = source else {
            return Ok(None);
        };
        let grammars = self.grammars.as_ref();
        let grammars = grammars.ok_or(ValidationError::GrammarSupport)?;
        let source = match healing {
            Some(healing) => source.after(healing.text()),
            None => source,
        };
        let grammar = grammars.compile(source).await;
        grammar.map(Some).map_err(ValidationError::Grammar)
    }

    /// Puts all tokens of images into a prompt that names each once. Files that nobody has decoded yet are, so that a
    /// damaged one is found here.
    async fn see(
        &self,
        ids: Vec<u32>,
        images: Vec<GivenImage>,
        parameters: &GenerateParameters,
        salt: Option<&str>,
    ) -> Result<Expanded, ValidationError> {
        let Some(vision) = &self.vision else {
            return Ok(Expanded::text(ids));
        };
        let looked = vision.look(ids, images).await?;
        if !looked.is_text() {
            if parameters.decoder_input_details {
                return Err(ValidationError::ImageLogprobs);
            }
            if rules::kept(looked.tokens(), parameters, &self.limits) < looked.tokens() {
                return Err(ValidationError::ImageTruncated);
            }
            // A small file may be thousands of tokens.
            rules::check_lengths(looked.tokens(), parameters, &self.limits)?;
        }
        let expanded = vision.expand(looked, salt).await?;
        vision.check(&expanded).await?;
        Ok(expanded)
    }

    /// The ids of a prompt that is no longer than a prompt may be.
    pub(crate) async fn encode_prompt(
        &self,
        inputs: Inputs,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, ValidationError> {
        rules::check_inputs(&inputs)?;
        rules::check_bytes(&inputs, self.tokenizer().longest_token(), &self.limits)?;
        self.encode(inputs, add_special_tokens).await
    }

    async fn encode(
        &self,
        inputs: Inputs,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, ValidationError> {
        match inputs {
            Inputs::Text(text) => {
                let ids = self.pool.encode(text, add_special_tokens).await;
                ids.map_err(|error| ValidationError::Tokenizer(error.to_string()))
            }
            Inputs::Ids(ids) => Ok(ids),
        }
    }
}

/// What a request's prefixes are kept apart by: its own salt, and the scope of its tenant where it has one.
fn salt(scope: Option<&str>, asked: Option<String>) -> Option<String> {
    match (scope, asked) {
        (None, asked) => asked,
        (Some(scope), None) => Some(scope.to_owned()),
        (Some(scope), Some(asked)) => Some(format!("{scope}/{asked}")),
    }
}
