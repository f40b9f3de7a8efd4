-- Open a publication and close the one that is stored and older ones, but those to keep. Sent again it does nothing.
-- Returns {the publication that was stored, whether this one is open now: not when its parameters are gone}.
-- Todo is emptied: what a publication owes is issued by the next look at it.
-- ARGV: token publication task config checkpoint now {progress} {history} {lasting keys} {keep}
local publication, task, config, checkpoint, now = argument(), argument(), argument(), argument(), argument()
local progress, history, lasting, kept = list(), list(), list(), list()
local results, moments = run .. 'results:' .. publication .. ':0', run .. 'moments:' .. publication .. ':0'
local parameters = run .. 'parameters:' .. publication

local stored = redis.call('HGET', run .. 'progress', 'publication')
if stored == publication and redis.call('EXISTS', run .. 'task', results, moments, parameters) == 4 then
  redis.call('EXPIRE', parameters, RUN_SECONDS) -- those that were staged again would go after a while
  return { stored, 1 }
end
if redis.call('EXISTS', parameters) == 0 then return { stored, 0 } end

redis.call('SET', run .. 'task', task)
redis.call('SET', run .. 'iteration', string.match(publication, '^%d+'))
redis.call('SET', run .. 'config', config)
if checkpoint ~= '' then redis.call('SET', run .. 'checkpoint', checkpoint) end
local keep = { [publication] = true }
for _, name in ipairs(kept) do keep[name] = true end
close_all_but(keep) -- before their names are forgotten
redis.call('HSET', run .. 'progress', 'publication', publication, unpack(progress))
if #kept > 0 then
  redis.call('HSET', run .. 'progress', 'open', table.concat(kept, ' '))
else
  redis.call('HDEL', run .. 'progress', 'open')
end
if #history > 0 and stored ~= publication then
  redis.call('XADD', run .. 'history', 'MAXLEN', '~', LONGEST_HISTORY, '*', unpack(history))
end
redis.call('ZADD', RUNS, 'NX', now, string.match(run, '^es:(.*):$'))
redis.call('UNLINK', run .. 'todo')
redis.call('SET', results, '', 'EX', RUN_SECONDS)
redis.call('SET', moments, '', 'EX', RUN_SECONDS)
redis.call('EXPIRE', parameters, RUN_SECONDS)
for _, key in ipairs(lasting) do redis.call('EXPIRE', key, RUN_SECONDS) end
return { stored, 1 }
