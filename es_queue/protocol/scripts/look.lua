-- Keep the lease, show progress, and look: whether Redis still has the publication, and who holds which blocks. Claims of
-- the dead are removed; nothing is issued here. Progress is not worth failing for when memory is short.
-- Returns {publication, whether it is whole, why the server refused to write, todo, claims of the living, claims of the
-- dead, bytes of each watched string}; todo is only a number when it is longer than MOST_LOOKED_AT.
-- ARGV: token holder milliseconds grace clear {progress} {refused} {workers to give way} {watched strings}
local holder, milliseconds, grace, clear = argument(), argument(), argument() == '1', argument() == '1'
local progress, refused, give_way, watched = list(), list(), list(), list()
local trouble = ''
local function attempt(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then trouble = reply.err end
  return reply
end
local stored = redis.call('HGET', run .. 'progress', 'publication')
-- A server out of memory refuses only a script's first write, so the first is one that changes nothing.
if stored then attempt('HSET', run .. 'progress', 'publication', stored) end
keep_lease(attempt, holder, milliseconds)
if not stored then return { false, 0, trouble, {}, {}, {}, {} } end
if #progress > 0 then attempt('HSET', run .. 'progress', unpack(progress)) end
if #refused > 0 then attempt('HSET', run .. 'refused', unpack(refused)) end
if #give_way > 0 then
  attempt('HSET', run .. 'progress', 'give_way', table.concat(give_way, ' '))
else
  redis.call('HDEL', run .. 'progress', 'give_way')
end
if clear then redis.call('UNLINK', run .. 'todo') end

local found = redis.call('EXISTS', run .. 'task', run .. 'results:' .. stored .. ':0',
  run .. 'moments:' .. stored .. ':0', run .. 'parameters:' .. stored)
local todo = redis.call('LLEN', run .. 'todo')
if todo <= MOST_LOOKED_AT then todo = redis.call('LRANGE', run .. 'todo', 0, -1) end

local claims, dead = {}, {}
for _, worker in ipairs(workers()) do
  local key = run .. 'claims:' .. worker
  local held = redis.pcall('LRANGE', key, 0, MOST_HELD - 1)
  if held.err then redis.call('UNLINK', key) held = {} end
  if grace or redis.call('EXISTS', run .. 'worker:' .. worker) == 1 then
    claims[#claims + 1] = { worker, held }
  else
    dead[#dead + 1] = { worker, held }
    redis.call('UNLINK', key)
    redis.call('SREM', run .. 'workers', worker)
  end
end
local sizes = {}
for _, key in ipairs(watched) do
  sizes[#sizes + 1] = redis.call('EXISTS', key) == 1 and redis.call('STRLEN', key) or -1
end
return { stored, found == 4 and 1 or 0, trouble, todo, claims, dead, sizes }
